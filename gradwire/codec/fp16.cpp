// IEEE half precision, rounded to nearest even. Values beyond its range become
// infinite.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/codec/fp16.cpp"
#include <hwy/foreach_target.h>

#include "gradwire/codec/cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

struct Float16 {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  // The processor has instructions for this.
  using Native = hn::Rebind<hwy::float16_t, FloatTag>;
  static HWY_INLINE Halves narrow(Floats v) {
    return hn::BitCast(HalfTag(), hn::DemoteTo(Native(), v));
  }
  static HWY_INLINE Floats widen(Halves h) {
    return hn::PromoteTo(FloatTag(), hn::BitCast(Native(), h));
  }
#else
  static constexpr std::int32_t kRebias = (127 - 15) << 23;
  static constexpr std::int32_t kLeastNormal = 113 << 23;
  // Subnormal halves are multiples of this.
  static constexpr float kUnit = 0x1p-24f;

  static HWY_INLINE Halves narrow(Floats v) {
    const FloatTag d;
    const IntTag di;
    const Ints size = abs_bits(v);
    const Ints bits = hn::Sub(size, hn::Set(di, kRebias));
    const Ints odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(di, 1));
    const Ints normal = hn::Min(
        hn::ShiftRight<13>(hn::Add(bits, hn::Add(odd, hn::Set(di, 0xfff)))),
        hn::Set(di, 0x7c00));
    const Ints small =
        to_integer(hn::Mul(hn::BitCast(d, size), hn::Set(d, 1 / kUnit))).code;
    const Ints nan = hn::Or(
        hn::And(hn::ShiftRight<13>(size), hn::Set(di, 0x3ff)),
        hn::Set(di, 0x7e00));
    Ints half =
        hn::IfThenElse(hn::Lt(size, hn::Set(di, kLeastNormal)), small, normal);
    half = hn::IfThenElse(hn::Gt(size, hn::Set(di, kInfinityBits)), nan, half);
    const Words sign = hn::And(
        hn::ShiftRight<16>(hn::BitCast(WordTag(), v)),
        hn::Set(WordTag(), 0x8000u));
    return truncate(hn::Or(hn::BitCast(WordTag(), half), sign));
  }
  static HWY_INLINE Floats widen(Halves h) {
    const FloatTag d;
    const IntTag di;
    const Words bits = hn::PromoteTo(WordTag(), h);
    const Ints size =
        hn::BitCast(di, hn::And(bits, hn::Set(WordTag(), 0x7fffu)));
    const Words sign =
        hn::ShiftLeft<16>(hn::And(bits, hn::Set(WordTag(), 0x8000u)));
    const Floats normal =
        hn::BitCast(d, hn::Add(hn::ShiftLeft<13>(size), hn::Set(di, kRebias)));
    const Floats small = hn::Mul(hn::ConvertTo(d, size), hn::Set(d, kUnit));
    const Ints quiet = hn::IfThenElseZero(
        hn::Gt(size, hn::Set(di, 0x7c00)), hn::Set(di, 0x00400000));
    const Floats special = hn::BitCast(
        d,
        hn::Or(
            hn::Or(hn::ShiftLeft<13>(size), hn::Set(di, kInfinityBits)),
            quiet));
    const auto is_small = hn::RebindMask(d, hn::Lt(size, hn::Set(di, 0x400)));
    const auto is_special =
        hn::RebindMask(d, hn::Gt(size, hn::Set(di, 0x7bff)));
    const Floats finite = hn::IfThenElse(is_small, small, normal);
    return hn::Or(
        hn::IfThenElse(is_special, special, finite), hn::BitCast(d, sign));
  }
#endif
};

const Kernels* fp16_cast() {
  return kernels<Cast<Float16>>();
}

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "gradwire/codec/options.h"

namespace gradwire::codec {
HWY_EXPORT(fp16_cast);

CodecInfo fp16_codec() {
  return {
      .name = "fp16",
      .summary = "half precision, 11 bits of precision up to 65504",
      .tolerance = 1.0 / 2048,
      .options = {},
      .make =
          [](const Options&) {
            return Codec(
                {.name = "fp16",
                 .id = 16,
                 .kernels = HWY_DYNAMIC_DISPATCH(fp16_cast)()});
          },
      .feedback = false,
      .floats = CodecInfo::Floats::kHalf};
}
}  // namespace gradwire::codec
#endif
