// Integers of 8 bits with one scale a block, around zero or from the smallest
// to the largest element.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/codec/int8.cpp"
#include <hwy/foreach_target.h>

#include "gradwire/codec/integer-inl.h"
#include "gradwire/codec/options.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {
const Kernels* int8_symmetric() {
  return kernels<Symmetric<8>>();
}
const Kernels* int8_affine() {
  return kernels<Affine<8>>();
}
}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::codec {
HWY_EXPORT(int8_symmetric);
HWY_EXPORT(int8_affine);

CodecInfo int8_codec() {
  return {
      .name = "int8",
      .summary = "8-bit integers with a scale for every block",
      .tolerance = 1.0 / 127,
      .options = {block_option(), scheme_option(), rounding_option()},
      .make = [](const Options& options) {
        const bool affine = options.word("scheme") == "affine";
        return Codec(
            {.name = "int8",
             .id = 8,
             .variant = affine,
             .kernels = affine ? HWY_DYNAMIC_DISPATCH(int8_affine)()
                               : HWY_DYNAMIC_DISPATCH(int8_symmetric)(),
             .block = options.integer("block"),
             .stochastic = options.word("rounding") == "stochastic"});
      }};
}
}  // namespace gradwire::codec
#endif
