// Private to the codecs: messages of several ranks to their sum, divided, in
// one pass over memory.

#if defined(GRADWIRE_CODEC_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_DECODE_INL_H_
#undef GRADWIRE_CODEC_DECODE_INL_H_
#else
#define GRADWIRE_CODEC_DECODE_INL_H_
#endif

#include <cmath>

#include "gradwire/codec/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec {
namespace HWY_NAMESPACE {

// Up to so many messages are summed in registers, more of them in a tile.
inline constexpr std::size_t kTogether = 4;

// Hands finish(sum, i, count, whole) what the first kCount messages add up to.
template <class Format, std::size_t kCount, class Finish>
HWY_INLINE void sum_together(
    const std::array<typename Format::Coder, kTogether>& coders,
    const std::array<const typename Format::Stored*, kTogether>& from,
    std::size_t n,
    const Finish& finish) {
  each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
    Floats sum = get<whole.value>(coders[0], from[0] + i, count);
    if constexpr (kCount > 1) {
      sum = hn::Add(sum, get<whole.value>(coders[1], from[1] + i, count));
    }
    if constexpr (kCount > 2) {
      sum = hn::Add(sum, get<whole.value>(coders[2], from[2] + i, count));
    }
    if constexpr (kCount > 3) {
      sum = hn::Add(sum, get<whole.value>(coders[3], from[3] + i, count));
    }
    finish(sum, i, count, whole);
  });
}

// Where the codes of a tile lie in each message, and its block's scale.
struct Place {
  std::size_t scale = 0;
  std::size_t codes = 0;
};

// One more message on top of what a tile holds.
template <class Format>
void add_to_tile(
    const std::uint8_t* message, Place place, std::size_t n, float* sums) {
  TileCodes<Format> codes;
  const typename Format::Coder coder(get_scale<Format>(message + place.scale));
  const auto* from = codes.read(message + place.codes, n);
  each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
    const Floats v = get<whole.value>(coder, from + i, count);
    store<whole.value, false>(
        hn::Add(load<whole.value>(sums + i, count), v), sums + i, count);
  });
}

// Hands finish(sum, i, count, whole) a tile's sum over all messages, in order.
template <class Format, class Finish>
HWY_INLINE void sum_tile(
    std::span<const std::span<const std::uint8_t>> messages,
    Place place,
    std::size_t n,
    const Finish& finish) {
  std::array<TileCodes<Format>, kTogether> codes;
  std::array<typename Format::Coder, kTogether> coders;
  std::array<const typename Format::Stored*, kTogether> from{};
  for (std::size_t k = 0; k < std::min(kTogether, messages.size()); ++k) {
    const std::uint8_t* message = messages[k].data();
    coders[k] =
        typename Format::Coder(get_scale<Format>(message + place.scale));
    from[k] = codes[k].read(message + place.codes, n);
  }
  switch (messages.size()) {
    case 1:
      return sum_together<Format, 1>(coders, from, n, finish);
    case 2:
      return sum_together<Format, 2>(coders, from, n, finish);
    case 3:
      return sum_together<Format, 3>(coders, from, n, finish);
    case 4:
      return sum_together<Format, 4>(coders, from, n, finish);
  }
  // From -0 on, which is what changes no sum: however many messages are summed,
  // it is as if it began with the first.
  HWY_ALIGN std::array<float, kTile> sums;
  sums.fill(messages.empty() ? 0.0f : -0.0f);
  for (const auto& message : messages) {
    add_to_tile<Format>(message.data(), place, n, sums.data());
  }
  each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
    finish(load<whole.value>(sums.data() + i, count), i, count, whole);
  });
}

// Division by the number of ranks, as a product where that gives the same bits.
struct Divisor {
  float divisor;
  float reciprocal;
  bool exact;

  HWY_INLINE explicit Divisor(float value)
      : divisor(value), reciprocal(1 / value) {
    int exponent = 0;
    exact = std::frexp(value, &exponent) == 0.5f;
  }
  HWY_INLINE Floats apply(Floats v) const {
    const FloatTag d;
    return exact ? hn::Mul(v, hn::Set(d, reciprocal))
                 : hn::Div(v, hn::Set(d, divisor));
  }
};

// Calls body(place, offset, n) for all tiles of all blocks.
template <class Format, class Body>
HWY_INLINE void each_tile(
    std::span<const Segment> segments, std::int64_t block, const Body& body) {
  const bool one_scale = Format::kScaleBytes > 0 && block == 0;
  Place place{kHeaderBytes, kHeaderBytes};
  place.codes += one_scale ? Format::kScaleBytes : 0;
  each_block(
      segments,
      block,
      [&](auto, auto, std::int64_t offset, std::size_t n) HWY_ATTR {
        if (Format::kScaleBytes > 0 && !one_scale) {
          place.scale = place.codes;
          place.codes += Format::kScaleBytes;
        }
        for (std::size_t at = 0; at < n; at += kTile) {
          const std::size_t tile = std::min(kTile, n - at);
          const auto moved = static_cast<std::int64_t>(at);
          body(place, offset + moved, tile);
          place.codes += code_bytes<Format>(tile);
        }
      });
}

template <class Format, bool kStream>
bool decode_as(const DecodeArgs& args) {
  const Divisor divisor(args.divisor);
  Ints worst = hn::Zero(IntTag());
  each_tile<Format>(
      args.segments,
      args.block,
      [&](Place place, std::int64_t offset, std::size_t n) HWY_ATTR {
        float* out = args.out + offset;
        // A copy: what is reached through a reference stays in memory.
        Ints tile_worst = hn::Zero(IntTag());
        const Divisor tile_divisor = divisor;
        sum_tile<Format>(
            args.messages,
            place,
            n,
            [&](Floats sum, std::size_t i, std::size_t count, auto whole)
                HWY_ATTR {
                  const Floats v = tile_divisor.apply(sum);
                  Ints size = abs_bits(v);
                  if constexpr (!whole.value) {
                    // Lanes past the end hold anything.
                    size =
                        hn::IfThenElseZero(hn::FirstN(IntTag(), count), size);
                  }
                  tile_worst = hn::Max(tile_worst, size);
                  store<whole.value, kStream>(v, out + i, count);
                });
        worst = hn::Max(worst, tile_worst);
      });
  return largest(worst) < kInfinityBits;
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

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::codec
HWY_AFTER_NAMESPACE();

#endif
