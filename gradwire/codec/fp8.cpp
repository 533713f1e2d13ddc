// Floats of 8 bits, e4m3 or e5m2, with one scale a block that makes the largest
// element the largest float.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/codec/fp8.cpp"
#include <hwy/foreach_target.h>

#include "gradwire/codec/integer-inl.h"
#include "gradwire/codec/options.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

// kMost is the largest finite float of the format.
template <int kMantissa, int kBias, int kMost>
struct Float8 {
  static constexpr std::size_t kCodeBits = 8;
  static constexpr std::size_t kScaleBytes = 4;
  static constexpr bool kCanRound = true;
  using Stored = std::uint8_t;
  using Scale = Symmetric<8>::Scale;

  static constexpr int kShift = 23 - kMantissa;
  static constexpr std::int32_t kRebias = (127 - kBias) << 23;
  // Subnormal floats are multiples of this.
  static constexpr float kUnit = 1.0f / (1 << (kBias - 1 + kMantissa));
  static constexpr float kLeastNormal = 1.0f / (1 << (kBias - 1));

  struct Measure : Symmetric<8>::Measure {
    HWY_INLINE Measure() : Symmetric<8>::Measure() {}
    template <class Least>
    HWY_INLINE Scale finish(const Least& least) const {
      return {step_for(this->magnitudes, kMost, least)};
    }
  };
  struct Decoder {
    float step;

    HWY_INLINE explicit Decoder(Scale scale) : step(scale.step) {}
    HWY_INLINE Floats get(const Stored* from) const {
      return value(load_codes(from));
    }
    HWY_INLINE Floats add(const Stored* from, Floats sum) const {
      return hn::Add(sum, get(from));
    }
    HWY_INLINE float bound() const {
      return step * (2 * kMost);
    }
    HWY_INLINE Floats value(Ints code) const {
      const FloatTag d;
      const IntTag di;
      const Ints size = hn::And(code, hn::Set(di, 0x7f));
      const Ints sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80)));
      const Floats normal = hn::BitCast(
          d, hn::Add(hn::ShiftLeft<kShift>(size), hn::Set(di, kRebias)));
      const Floats small = hn::Mul(hn::ConvertTo(d, size), hn::Set(d, kUnit));
      const auto is_small =
          hn::RebindMask(d, hn::Lt(size, hn::Set(di, 1 << kMantissa)));
      const Floats unsigned_value = hn::IfThenElse(is_small, small, normal);
      const Floats result = hn::Mul(unsigned_value, hn::Set(d, step));
      return hn::Or(result, hn::BitCast(d, sign));
    }
  };
  struct Encoder {
    ByStep by_step;
    Decoder decoder;

    HWY_INLINE explicit Encoder(Scale scale)
        : by_step(scale.step), decoder(scale) {}

    template <bool kStream, bool kStochastic>
    HWY_INLINE Floats
    put(Floats v, const NoiseLanes& noise, std::size_t i, Stored* to) const {
      const FloatTag d;
      const IntTag di;
      v = by_step.apply(v);
      const Ints sign =
          hn::And(hn::BitCast(di, v), hn::Set(di, std::int32_t{INT32_MIN}));
      const Floats size = hn::Min(hn::Abs(v), hn::Set(d, float(kMost)));
      const Ints code =
          hn::Min(magnitude<kStochastic>(size, noise, i), largest_code());
      const Ints half =
          hn::Or(code, hn::And(hn::ShiftRight<24>(sign), hn::Set(di, 0x80)));
      store_codes(half, to);
      return decoder.value(half);
    }
    HWY_INLINE Floats lost(Floats wanted, Floats sent) const {
      return hn::Sub(wanted, sent);
    }

    static HWY_INLINE Ints largest_code() {
      const IntTag di;
      const auto bits = std::bit_cast<std::int32_t>(float(kMost)) - kRebias;
      return hn::Set(di, bits >> kShift);
    }

    // Exponent and mantissa of a float that is not negative.
    template <bool kStochastic>
    static HWY_INLINE Ints
    magnitude(Floats size, const NoiseLanes& noise, std::size_t i) {
      const FloatTag d;
      const IntTag di;
      const Ints bits = hn::Sub(hn::BitCast(di, size), hn::Set(di, kRebias));
      const Floats units = hn::Mul(size, hn::Set(d, 1 / kUnit));
      Ints up;
      Ints small;
      if constexpr (kStochastic) {
        up = hn::ShiftLeft<kShift - 16>(noise.bits16(i));
        small = to_integer(hn::Floor(hn::Add(units, noise.uniform(i)))).code;
      } else {
        const Ints odd = hn::And(hn::ShiftRight<kShift>(bits), hn::Set(di, 1));
        up = hn::Add(odd, hn::Set(di, (1 << (kShift - 1)) - 1));
        small = to_integer(units).code;
      }
      const Ints normal = hn::ShiftRight<kShift>(hn::Add(bits, up));
      const auto is_small =
          hn::RebindMask(di, hn::Lt(size, hn::Set(d, kLeastNormal)));
      return hn::IfThenElse(is_small, small, normal);
    }
  };
};

const Kernels* fp8_e4m3() {
  return kernels<Float8<3, 7, 448>>();
}
const Kernels* fp8_e5m2() {
  return kernels<Float8<2, 15, 57344>>();
}

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::codec {
HWY_EXPORT(fp8_e4m3);
HWY_EXPORT(fp8_e5m2);

CodecInfo fp8_codec() {
  return {
      .name = "fp8",
      .summary = "8-bit floats with a scale for every block",
      .tolerance = 1.0 / 7,
      .options =
          {block_option(),
           {.name = "format",
            .fallback = "e4m3",
            .help = "bits of exponent and mantissa",
            .choices = {"e4m3", "e5m2"}},
           rounding_option()},
      .make = [](const Options& options) {
        const bool wide = options.word("format") == "e5m2";
        return Codec(
            {.name = "fp8",
             .id = 80,
             .variant = wide,
             .kernels = wide ? HWY_DYNAMIC_DISPATCH(fp8_e5m2)()
                             : HWY_DYNAMIC_DISPATCH(fp8_e4m3)(),
             .block = options.integer("block"),
             .stochastic = options.word("rounding") == "stochastic"});
      }};
}
}  // namespace gradwire::codec
#endif
