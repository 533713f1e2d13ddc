// Integers of 4 bits with one scale a block, around zero or from the smallest
// to the largest element.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/codec/int4.cpp"
#include <hwy/foreach_target.h>

#include "gradwire/codec/integer-inl.h"
#include "gradwire/codec/options.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {
const Kernels* int4_symmetric() {
  return kernels<Symmetric<4>>();
}
const Kernels* int4_affine() {
  return kernels<Affine<4>>();
}
}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::codec {
HWY_EXPORT(int4_symmetric);
HWY_EXPORT(int4_affine);

CodecInfo int4_codec() {
  return {
      .name = "int4",
      .summary = "4-bit integers with a scale for every block",
      .tolerance = 1.0 / 7,
      .options = {block_option(), scheme_option(), rounding_option()},
      .make = [](const Options& options) {
        const bool affine = options.word("scheme") == "affine";
        return Codec(
            {.name = "int4",
             .id = 4,
             .variant = affine,
             .kernels = affine ? HWY_DYNAMIC_DISPATCH(int4_affine)()
                               : HWY_DYNAMIC_DISPATCH(int4_symmetric)(),
             .block = options.integer("block"),
             .stochastic = options.word("rounding") == "stochastic"});
      }};
}
}  // namespace gradwire::codec
#endif
