// Private to the codecs: what they all do with a message, compiled once for
// every kind of processor. Included by a codec's source after
// hwy/foreach_target.h, inside of which it gets its own guard.
//
// A Format says how one vector of floats becomes codes and back:
//
//   using Stored           type of a code in memory (of a half byte: uint8_t)
//   kCodeBits, kScaleBytes of the message; kScaleBytes 0: a cast, no scale
//   kCanRound              whether it can round at random
//   struct Scale           what a block is scaled by, trivially copyable, with
//                          bool finite() and bool valid()
//   struct Measure         add(vector) for all of a block, then finish(least);
//                          least() is its smallest magnitude, dear to ask for
//   struct Encoder         made from a Scale:
//     Vec put<kStream, kStochastic>(Vec, NoiseLanes, place, Stored*)
//     Vec lost(Vec wanted, Vec)  what sending it lost, from what put returned
//   struct Decoder         made from a Scale:
//     Vec get(const Stored*)
//     Vec add(const Stored*, Vec sum)  sum + get(), rounded once as a sum is
//     float bound()          no value is larger (for casts: is not asked)
//
// Blocks are worked on in tiles that stay in the first-level cache, so memory
// is read once and written once.

#if defined(GRADWIRE_CODEC_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_KERNELS_INL_H_
#undef GRADWIRE_CODEC_KERNELS_INL_H_
#else
#define GRADWIRE_CODEC_KERNELS_INL_H_
#endif

#include "gradwire/codec/decode-inl.h"
#include "gradwire/codec/encode-inl.h"
#include "gradwire/codec/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

template <class Format>
std::size_t damaged_scale(
    std::span<const Segment> segments,
    std::int64_t block,
    const std::uint8_t* message) {
  if constexpr (Format::kScaleBytes == 0) {
    return 0;
  }
  const auto is_damaged = [&](std::size_t at) HWY_ATTR {
    return !get_scale<Format>(message + at).valid();
  };
  std::size_t found = 0;
  if (has_one_scale<Format>(block)) {
    found = is_damaged(kHeaderBytes) ? kHeaderBytes : 0;
  } else {
    each_block<Format>(segments, block, [&](const Block& one) HWY_ATTR {
      found = found == 0 && is_damaged(one.scale) ? one.scale : found;
    });
  }
  return found;
}

template <class Format>
const Kernels* kernels() {
  static constexpr Kernels table{
      Format::kScaleBytes,
      Format::kCodeBits,
      &encode<Format>,
      &decode<Format>,
      &reduce<Format>,
      &damaged_scale<Format>};
  return &table;
}

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
