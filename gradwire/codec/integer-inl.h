// Private to the codecs: floats as integers of 8 or 4 bits, scaled by block.
// See kernels-inl.h for what a Format is.

#if defined(GRADWIRE_CODEC_INTEGER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_INTEGER_INL_H_
#undef GRADWIRE_CODEC_INTEGER_INL_H_
#else
#define GRADWIRE_CODEC_INTEGER_INL_H_
#endif

#include <bit>
#include <cmath>
#include <limits>

#include "gradwire/codec/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

// Beyond these limits the reciprocal of a step is not a normal float. Values
// and step are then first multiplied by a power of two, which keeps all digits.
inline constexpr float kSmall = 0x1p-100f;
inline constexpr float kLarge = 0x1p100f;

HWY_INLINE float prescale(float step) {
  if (step == 0) {
    return 1.0f;
  }
  return step < kSmall ? kLarge : step > kLarge ? kSmall : 1.0f;
}

// Values in units of a step.
struct ByStep {
  float before;
  float to_code;

  HWY_INLINE explicit ByStep(float step)
      : before(prescale(step)), to_code(step > 0 ? 1 / (step * before) : 0) {}
  HWY_INLINE Floats apply(Floats v) const {
    const FloatTag d;
    return hn::Mul(hn::Mul(v, hn::Set(d, before)), hn::Set(d, to_code));
  }
};

HWY_INLINE Floats clamp(Floats v, float least, float most) {
  const FloatTag d;
  return hn::Min(hn::Max(v, hn::Set(d, least)), hn::Set(d, most));
}

// Rounds up or down to an integer at random, right on average.
HWY_INLINE Floats round_at_random(
    Floats v, const NoiseLanes& noise, std::size_t i, float least, float most) {
  return clamp(hn::Floor(hn::Add(v, noise.uniform(i))), least, most);
}

// The lowest bytes.
template <class Stored>
HWY_INLINE void store_codes(Ints codes, Stored* to) {
  const hn::Rebind<std::uint8_t, IntTag> narrow;
  const Words words = hn::BitCast(WordTag(), codes);
  hn::StoreU(
      hn::TruncateTo(narrow, words),
      narrow,
      reinterpret_cast<std::uint8_t*>(to));
}
template <class Stored>
HWY_INLINE Ints load_codes(const Stored* from) {
  const hn::Rebind<Stored, IntTag> narrow;
  return hn::PromoteTo(IntTag(), hn::LoadU(narrow, from));
}

// A step has at most 16 significant bits, so its product with a code of 8 bits
// is exact, and a fused multiply-add gives the same bits as a product and a
// sum. (The step of a block of one magnitude may have more bits; its codes are
// 1 and -1. Codes and steps that no encoder writes may give different bits on
// different processors, which does no harm.)
HWY_INLINE std::int32_t step_spacing(std::int32_t bits) {
  return bits < 1 << 16 ? 1 : 1 << 8;
}

// The smallest such step with codes * step >= range, which is finite.
template <class Range>
HWY_INLINE float reaching_step(Range range, Range codes) {
  auto bits = std::bit_cast<std::int32_t>(static_cast<float>(range / codes));
  const std::int32_t mask = step_spacing(bits) - 1;
  bits = (bits + mask) & ~mask;
  const auto step = std::bit_cast<float>(bits);
  return static_cast<Range>(step) * codes < range
             ? std::bit_cast<float>(bits + mask + 1)
             : step;
}

HWY_INLINE float next_smaller_step(float step) {
  const auto bits = std::bit_cast<std::int32_t>(step);
  return std::bit_cast<float>(bits - step_spacing(bits - 1));
}

// The step that gives the largest magnitude the code `codes`. If all elements
// have the same magnitude, it is that magnitude, and the code 1 is exact.
template <class Least>
HWY_INLINE float step_for(
    const Magnitudes& magnitudes, float codes, const Least& least) {
  const std::int32_t bits = magnitudes.most_bits();
  const auto most = std::bit_cast<float>(bits);
  if (bits >= kInfinityBits ||
      (magnitudes.may_be_equal(bits) && least() == bits)) {
    return most;
  }
  const float step = reaching_step(most, codes);
  // The largest floats must not become infinite.
  return std::isinf(step * codes) ? next_smaller_step(step) : step;
}

// Zero is in the middle, and exact.
template <int kBits>
struct Symmetric {
  static constexpr std::size_t kCodeBits = kBits;
  static constexpr std::size_t kScaleBytes = 4;
  static constexpr bool kCanRound = true;
  static constexpr float kMost = (1 << (kBits - 1)) - 1;
  // Half bytes have no sign, so codes are stored with an offset.
  static constexpr std::int32_t kOffset = kBits == 8 ? 0 : 1 << (kBits - 1);
  using Stored = std::conditional_t<kBits == 8, std::int8_t, std::uint8_t>;

  struct Scale {
    float step = 0;
    bool finite() const {
      return std::isfinite(step);
    }
    bool valid() const {
      return !std::signbit(step);
    }
  };
  struct Measure {
    Magnitudes magnitudes;
    HWY_INLINE Measure() : magnitudes() {}
    HWY_INLINE void add(Floats v) {
      magnitudes.add(v);
    }
    template <class Least>
    HWY_INLINE Scale finish(const Least& least) const {
      return {step_for(magnitudes, kMost, least)};
    }
  };
  struct Encoder {
    ByStep by_step;
    // Codes are floats in units of 1 / before. This saves a product, and still
    // covers very small and very large values.
    float step;
    // Adding it rounds to these units, half to even, and leaves the code in the
    // lowest byte.
    float shift;

    HWY_INLINE explicit Encoder(Scale scale)
        : by_step(scale.step),
          step(scale.step * by_step.before),
          shift((kToInteger + kOffset) / by_step.before) {}

    template <bool kStream, bool kStochastic>
    HWY_INLINE Floats
    put(Floats v, const NoiseLanes& noise, std::size_t i, Stored* to) const {
      const FloatTag d;
      if constexpr (kStochastic) {
        v = round_at_random(by_step.apply(v), noise, i, -kMost, kMost);
        v = hn::Mul(v, hn::Set(d, 1 / by_step.before));
      } else {
        v = hn::Mul(v, hn::Set(d, by_step.to_code));
      }
      const Floats shifted = hn::Add(v, hn::Set(d, shift));
      store_codes(hn::BitCast(IntTag(), shifted), to);
      return hn::Sub(shifted, hn::Set(d, shift));
    }
    HWY_INLINE Floats lost(Floats wanted, Floats code) const {
      return hn::NegMulAdd(code, hn::Set(FloatTag(), step), wanted);
    }
  };
  struct Decoder {
    float step;

    HWY_INLINE explicit Decoder(Scale scale) : step(scale.step) {}
    HWY_INLINE Floats get(const Stored* from) const {
      return hn::Mul(number(from), hn::Set(FloatTag(), step));
    }
    HWY_INLINE Floats add(const Stored* from, Floats sum) const {
      return hn::MulAdd(number(from), hn::Set(FloatTag(), step), sum);
    }
    HWY_INLINE float bound() const {
      return step * (1 << (kBits - 1));
    }
    static HWY_INLINE Floats number(const Stored* from) {
      const IntTag di;
      Ints code = load_codes(from);
      if constexpr (kOffset != 0) {
        code = hn::Sub(code, hn::Set(di, kOffset));
      }
      return hn::ConvertTo(FloatTag(), code);
    }
  };
};

// From the smallest element to the largest: one code more than Symmetric has,
// and none for values that a block does not have.
template <int kBits>
struct Affine {
  static constexpr std::size_t kCodeBits = kBits;
  static constexpr std::size_t kScaleBytes = 8;
  static constexpr bool kCanRound = true;
  static constexpr float kMost = (1 << kBits) - 1;
  using Stored = std::uint8_t;

  struct Scale {
    float least = 0;
    float step = 0;
    bool finite() const {
      return std::isfinite(least);
    }
    bool valid() const {
      return step >= 0 && std::isfinite(step);
    }
  };
  struct Decoder {
    // A range may be twice the largest float, which code times step cannot
    // express: decoding is in units of `unit`.
    float step;
    float base;
    float unit;

    HWY_INLINE explicit Decoder(Scale scale) {
      const float by = std::min(prescale(scale.step), 1.0f);
      step = scale.step * by;
      base = scale.least * by;
      unit = 1 / by;
    }
    HWY_INLINE Floats get(const Stored* from) const {
      return value(hn::ConvertTo(FloatTag(), load_codes(from)));
    }
    HWY_INLINE Floats add(const Stored* from, Floats sum) const {
      return hn::Add(sum, get(from));
    }
    HWY_INLINE Floats value(Floats code) const {
      const FloatTag d;
      const Floats v = hn::MulAdd(code, hn::Set(d, step), hn::Set(d, base));
      return hn::Mul(v, hn::Set(d, unit));
    }
    HWY_INLINE float bound() const {
      return (step * (kMost + 1) + std::fabs(base)) * unit;
    }
  };
  struct Encoder {
    ByStep by_step;
    float least;
    Decoder decoder;

    HWY_INLINE explicit Encoder(Scale scale)
        : by_step(scale.step),
          least(scale.least * by_step.before),
          decoder(scale) {}

    template <bool kStream, bool kStochastic>
    HWY_INLINE Floats
    put(Floats v, const NoiseLanes& noise, std::size_t i, Stored* to) const {
      const FloatTag d;
      // The product with a power of two is exact, or so small that the code is
      // 0.
      v = hn::MulSub(v, hn::Set(d, by_step.before), hn::Set(d, least));
      v = hn::Mul(v, hn::Set(d, by_step.to_code));
      if constexpr (kStochastic) {
        v = round_at_random(v, noise, i, 0, kMost);
      }
      const Rounded whole = to_integer(v);
      store_codes(whole.code, to);
      return decoder.value(whole.value);
    }
    HWY_INLINE Floats lost(Floats wanted, Floats sent) const {
      return hn::Sub(wanted, sent);
    }
  };
  struct Measure {
    Magnitudes magnitudes;
    Floats least;
    Floats most;

    HWY_INLINE Measure()
        : magnitudes(),
          least(hn::Set(FloatTag(), std::numeric_limits<float>::infinity())),
          most(hn::Neg(least)) {}
    HWY_INLINE void add(Floats v) {
      magnitudes.add(v);
      least = hn::Min(least, v);
      most = hn::Max(most, v);
    }
    template <class Least>
    HWY_INLINE Scale finish(const Least&) const {
      const FloatTag d;
      if (!magnitudes.all_finite()) {
        return {std::numeric_limits<float>::quiet_NaN(), 0};
      }
      // Zero is added because -0 and 0 are equal: which one is found is chance.
      const float low = hn::GetLane(hn::MinOfLanes(d, least)) + 0.0f;
      const float high = hn::GetLane(hn::MaxOfLanes(d, most)) + 0.0f;
      if (low > high) {
        return {};
      }
      const double range = static_cast<double>(high) - low;
      const Scale scale{low, reaching_step(range, double{kMost})};
      // The largest floats must not become infinite.
      const Floats top = Decoder(scale).value(hn::Set(d, kMost));
      return std::isinf(hn::GetLane(top))
                 ? Scale{low, next_smaller_step(scale.step)}
                 : scale;
    }
  };
};

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
