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

// Below this the reciprocal of a scale could overflow: values and scale are
// then multiplied by a power of two first, which changes no digit.
inline constexpr float kSmall = 0x1p-100f;
inline constexpr float kEnlarge = 0x1p100f;

HWY_INLINE float enlargement(float scale) {
  return scale < kSmall ? kEnlarge : 1.0f;
}

// Integers as floats and as bits.
struct Rounded {
  Floats value;
  Ints code;
};

// To the nearest integer, half to even. Adding and taking away 1.5 * 2^23
// rounds what is smaller than 2^22, and leaves the integer in the lowest bits.
HWY_INLINE Rounded to_integer(Floats v) {
  const FloatTag d;
  const IntTag di;
  const Floats shift = hn::Set(d, 0x1.8p23f);
  const Floats shifted = hn::Add(v, shift);
  return {
      hn::Sub(shifted, shift),
      hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, shift))};
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

// What code 1 stands for when `most` is to be code `codes`. Elements that have
// all the same size are code 1, which is exact. Far below the smallest normal
// float a quotient has few digits left, so that fewer codes are used there.
HWY_INLINE float step_for(const Magnitudes& magnitudes, float codes) {
  const float most = magnitudes.most();
  if (most == magnitudes.least()) {
    return most;
  }
  const float step = most < kSmall ? most / (codes / 2) : most / codes;
  return step > 0 || !(most < kSmall) ? step : most;
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
    float enlarge = 1;
    float to_code = 0;

    Coder() = default;
    HWY_INLINE explicit Coder(Scale scale)
        : step(scale.step),
          enlarge(enlargement(step)),
          to_code(step > 0 ? 1 / (step * enlarge) : 0) {}

    template <bool kStream, bool kStochastic>
    HWY_INLINE Floats
    put(Floats v, const NoiseLanes& noise, std::size_t i, Stored* to) const {
      const FloatTag d;
      const IntTag di;
      v = hn::Mul(hn::Mul(v, hn::Set(d, enlarge)), hn::Set(d, to_code));
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
      return low > high ? Scale{} : Scale{low, high / kMost - low / kMost};
    }
  };
  struct Coder {
    float least = 0;
    float step = 0;
    float enlarge = 1;
    float to_code = 0;

    Coder() = default;
    HWY_INLINE explicit Coder(Scale scale)
        : least(scale.least),
          step(scale.step),
          enlarge(enlargement(scale.step)),
          to_code(step > 0 ? 1 / (step * enlarge) : 0) {}

    template <bool kStream, bool kStochastic>
    HWY_INLINE Floats
    put(Floats v, const NoiseLanes& noise, std::size_t i, Stored* to) const {
      const FloatTag d;
      v = hn::Mul(
          hn::Mul(hn::Sub(v, hn::Set(d, least)), hn::Set(d, enlarge)),
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
      return hn::Add(hn::Mul(code, hn::Set(d, step)), hn::Set(d, least));
    }
  };
};

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::codec
HWY_AFTER_NAMESPACE();

#endif
