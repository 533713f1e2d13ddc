// Private to the codecs: decodes messages of several ranks to their sum,
// divided, in one pass over memory.

#if defined(GRADWIRE_CODEC_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_DECODE_INL_H_
#undef GRADWIRE_CODEC_DECODE_INL_H_
#else
#define GRADWIRE_CODEC_DECODE_INL_H_
#endif

#include "gradwire/codec/sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

inline HWY_NOINLINE bool all_finite(const float* values, std::size_t n) {
  Magnitudes sizes;
  each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
    sizes.add(load<whole.value>(values + i, count));
  });
  return sizes.all_finite();
}

// False when an average is not finite. Elements are checked one by one only
// with casts, and with scales so large that sums may be infinite.
template <class Format, bool kStream, std::size_t kCount>
bool decode_block(
    const DecodeArgs& args, const Divisor& by, const Block& block) {
  constexpr bool kCheck = Format::kScaleBytes == 0;
  const Sum<Format, kCount> sum(args.messages, block.scale);
  const Divisor divisor = by;
  Magnitudes sizes;
  float* out = args.out + block.offset;
  for (std::size_t at = 0; at < block.n; at += kTile) {
    float* to = out + at;
    sum.tile(
        block.codes + code_bytes<Format>(at),
        tile_at(block, at),
        [&](Floats v, std::size_t i, std::size_t count, auto whole) HWY_ATTR {
          v = divisor.apply(v);
          if constexpr (kCheck) {
            sizes.add(v);
          }
          store<whole.value, kStream>(v, to + i, count);
        });
  }
  if constexpr (kCheck) {
    return sizes.all_finite();
  } else {
    return sum.is_surely_finite() || all_finite(out, block.n);
  }
}

template <class Format, bool kStream>
bool decode_as(const DecodeArgs& args) {
  constexpr std::array kDecode{
      &decode_block<Format, kStream, 0>,
      &decode_block<Format, kStream, 1>,
      &decode_block<Format, kStream, 2>,
      &decode_block<Format, kStream, 3>,
      &decode_block<Format, kStream, 4>};
  const auto decode = kDecode[sum_kind(args.messages)];
  const Divisor divisor(args.divisor);
  bool finite = true;
  each_block<Format>(args.segments, args.block, [&](const Block& block) {
    finite &= decode(args, divisor, block);
  });
  return finite;
}

template <class Format>
bool decode(const DecodeArgs& args) {
  if (!can_stream(args.segments, args.block, args.out)) {
    return decode_as<Format, false>(args);
  }
  const bool finite = decode_as<Format, true>(args);
  hwy::FlushStream();
  return finite;
}

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
