// Private to the codecs: what they all do with a message, compiled once for
// every kind of processor. Included by a codec's source after
// hwy/foreach_target.h, inside of which it gets its own guard.
//
// A Format says how one vector of floats becomes codes and back:
//
//   using Stored           type of a code in memory (of a half byte: uint8_t)
//   kCodeBits, kScaleBytes of the message; kScaleBytes 0: a cast, no scale
//   struct Scale           what a block is scaled by, trivially copyable, with
//                          bool finite() and bool valid()
//   struct Measure         add(vector) for all of a block, then finish()
//   struct Coder           made from a Scale:
//     Vec put<kStream>(Vec, Noise lanes or nothing, Stored*)  value decoded
//     Vec get(const Stored*)
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
namespace gradwire::codec {
namespace HWY_NAMESPACE {

template <class Format>
bool valid_scale(const std::uint8_t* from) {
  return get_scale<Format>(from).valid();
}

template <class Format>
const Kernels* kernels() {
  static constexpr Kernels table{
      Format::kScaleBytes,
      Format::kCodeBits,
      &encode<Format>,
      &decode<Format>,
      &reduce<Format>,
      &valid_scale<Format>};
  return &table;
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::codec
HWY_AFTER_NAMESPACE();

#endif
