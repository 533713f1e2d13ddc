// The upper half of a float, rounded to nearest even.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/codec/bf16.cpp"
#include <hwy/foreach_target.h>

#include "gradwire/codec/cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

// In integer operations, because Highway 1.0.3 truncates.
struct BFloat16 {
  static HWY_INLINE Halves narrow(Floats v) {
    const WordTag dw;
    const Words bits = hn::BitCast(dw, v);
    const Words odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(dw, 1u));
    const Words rounded = hn::Add(bits, hn::Add(odd, hn::Set(dw, 0x7fffu)));
    // Rounding must not carry a NaN into infinity.
    const Words quiet = hn::Or(bits, hn::Set(dw, 0x00400000u));
    const auto is_nan = hn::RebindMask(
        dw, hn::Gt(abs_bits(v), hn::Set(IntTag(), kInfinityBits)));
    return truncate(hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded)));
  }
  static HWY_INLINE Floats widen(Halves h) {
    const WordTag dw;
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(dw, h)));
  }
};

const Kernels* bf16_cast() {
  return kernels<Cast<BFloat16>>();
}

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "gradwire/codec/options.h"

namespace gradwire::codec {
HWY_EXPORT(bf16_cast);

CodecInfo bf16_codec() {
  return {
      .name = "bf16",
      .summary = "bfloat16, the range of fp32 with 8 bits of precision",
      .tolerance = 1.0 / 256,
      .options = {},
      .make =
          [](const Options&) {
            return Codec(
                {.name = "bf16",
                 .id = 17,
                 .kernels = HWY_DYNAMIC_DISPATCH(bf16_cast)()});
          },
      .feedback = false,
      .floats = CodecInfo::Floats::kBFloat16};
}
}  // namespace gradwire::codec
#endif
