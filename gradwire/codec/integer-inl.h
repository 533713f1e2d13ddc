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
namespace gradwire::codec {
namespace HWY_NAMESPACE {

// Beyond these the reciprocal of a step is no normal float: values and step are
// then multiplied by a power of two first, which changes no digit.
inline constexpr float kSmall = 0x1p-100f;
inline constexpr float kLarge = 0x1p100f;

HWY_INLINE float prescale(float step) {
  if (step == 0) {
    return 1.0f;
  }
  return step < kSmall ? kLarge : step > kLarge ? kSmall : 1.0f;
}

HWY_INLINE Floats clamp(Floats v, float least, float most) {
  const FloatTag d;
  return hn::Min(hn::Max(v, hn::Set(d, least)), hn::Set(d, most));
}

// Up or down to an integer, with chances that make it right on average.
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

// The largest and the smallest absolute value of a block, as bits: NaN is then
// the largest of all. (Only constructors that are written out are compiled for
// the right processor.)
struct Magnitudes {
  Ints largest_bits;
  Ints smallest_bits;

  HWY_INLINE Magnitudes()
      : largest_bits(hn::Zero(IntTag())),
        smallest_bits(hn::Set(IntTag(), kAbsMask)) {}
  HWY_INLINE void add(Floats v) {
    const Ints bits = abs_bits(v);
    largest_bits = hn::Max(largest_bits, bits);
    smallest_bits = hn::Min(smallest_bits, bits);
  }
  HWY_INLINE float most() const {
    return std::bit_cast<float>(largest(largest_bits));
  }
  HWY_INLINE float least() const {
    const Ints least = hn::MinOfLanes(IntTag(), smallest_bits);
    return std::bit_cast<float>(hn::GetLane(least));
  }
};

// The neighbours of a float that is not negative.
HWY_INLINE float next_up(float v) {
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(v) + 1);
}
HWY_INLINE float next_down(float v) {
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(v) - 1);
}

// The smallest float of which `codes` reach a finite range. (Far below the
// smallest normal float a quotient that is rounded down is much too small.)
HWY_INLINE float reaching_step(double range, float codes) {
  const auto step = static_cast<float>(range / codes);
  return static_cast<double>(step) * codes < range ? next_up(step) : step;
}

// What code 1 stands for when `most` is to be code `codes`. Elements that have
// all the same size are code 1, which is exact.
HWY_INLINE float step_for(const Magnitudes& magnitudes, float codes) {
  const float most = magnitudes.most();
  if (!std::isfinite(most) || most == magnitudes.least()) {
    return most;
  }
  const float step = reaching_step(most, codes);
  // The largest floats must not become infinite.
  return std::isinf(step * codes) ? next_down(step) : step;
}

// Zero is in the middle, and exact.
template <int kBits>
struct Symmetric {
  static constexpr std::size_t kCodeBits = kBits;
  static constexpr std::size_t kScaleBytes = 4;
  static constexpr bool kCanRound = true;
  static constexpr float kMost = (1 << (kBits - 1)) - 1;
  // Half bytes have no sign: they are counted from the smallest.
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
    HWY_INLINE Scale finish() const {
      return {step_for(magnitudes, kMost)};
    }
  };
  struct Coder {
    float step = 0;
    float before = 1;
    float to_code = 0;

    Coder() = default;
    HWY_INLINE explicit Coder(Scale scale)
        : step(scale.step),
          before(prescale(step)),
          to_code(step > 0 ? 1 / (step * before) : 0) {}

    template <bool kStream, bool kStochastic>
    HWY_INLINE Floats
    put(Floats v, const NoiseLanes& noise, std::size_t i, Stored* to) const {
      const FloatTag d;
      const IntTag di;
      v = hn::Mul(hn::Mul(v, hn::Set(d, before)), hn::Set(d, to_code));
      if constexpr (kStochastic) {
        v = round_at_random(v, noise, i, -kMost, kMost);
      }
      const Rounded whole = to_integer(v);
      store_codes(hn::Add(whole.code, hn::Set(di, kOffset)), to);
      return value(whole.value);
    }
    HWY_INLINE Floats get(const Stored* from) const {
      const IntTag di;
      const Ints code = hn::Sub(load_codes(from), hn::Set(di, kOffset));
      return value(hn::ConvertTo(FloatTag(), code));
    }
    HWY_INLINE Floats value(Floats code) const {
      return hn::Mul(code, hn::Set(FloatTag(), step));
    }
  };
};

// From the smallest element to the largest: one more code, and no code wasted
// on values that a block does not have.
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
  struct Coder {
    float before = 1;
    float least = 0;
    float to_code = 0;
    // A range may be twice the largest float, and code times step then is none:
    // decoded in units of 1 / after.
    float step = 0;
    float base = 0;
    float after = 1;

    Coder() = default;
    HWY_INLINE explicit Coder(Scale scale)
        : before(prescale(scale.step)),
          least(scale.least * before),
          to_code(scale.step > 0 ? 1 / (scale.step * before) : 0) {
      const float by = std::min(before, 1.0f);
      step = scale.step * by;
      base = scale.least * by;
      after = 1 / by;
    }

    template <bool kStream, bool kStochastic>
    HWY_INLINE Floats
    put(Floats v, const NoiseLanes& noise, std::size_t i, Stored* to) const {
      const FloatTag d;
      v = hn::Mul(
          hn::Sub(hn::Mul(v, hn::Set(d, before)), hn::Set(d, least)),
          hn::Set(d, to_code));
      v = kStochastic ? round_at_random(v, noise, i, 0, kMost)
                      : clamp(v, 0, kMost);
      const Rounded whole = to_integer(v);
      store_codes(whole.code, to);
      return value(whole.value);
    }
    HWY_INLINE Floats get(const Stored* from) const {
      return value(hn::ConvertTo(FloatTag(), load_codes(from)));
    }
    HWY_INLINE Floats value(Floats code) const {
      const FloatTag d;
      const Floats v =
          hn::Add(hn::Mul(code, hn::Set(d, step)), hn::Set(d, base));
      return hn::Mul(v, hn::Set(d, after));
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
    HWY_INLINE Scale finish() const {
      const FloatTag d;
      if (!std::isfinite(magnitudes.most())) {
        return {std::numeric_limits<float>::quiet_NaN(), 0};
      }
      // Adding zero: -0 and 0 are equal, so which one is found is chance.
      const float low = hn::GetLane(hn::MinOfLanes(d, least)) + 0.0f;
      const float high = hn::GetLane(hn::MaxOfLanes(d, most)) + 0.0f;
      if (low > high) {
        return {};
      }
      const double range = static_cast<double>(high) - low;
      const Scale scale{low, reaching_step(range, kMost)};
      // The largest floats must not become infinite.
      const Floats top = Coder(scale).value(hn::Set(d, kMost));
      return std::isinf(hn::GetLane(top)) ? Scale{low, next_down(scale.step)}
                                          : scale;
    }
  };
};

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::codec
HWY_AFTER_NAMESPACE();

#endif
