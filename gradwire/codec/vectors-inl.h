// Private to the codecs: vectors of floats, the tail of an array included, and
// the noise that stochastic rounding draws from.

#if defined(GRADWIRE_CODEC_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_VECTORS_INL_H_
#undef GRADWIRE_CODEC_VECTORS_INL_H_
#else
#define GRADWIRE_CODEC_VECTORS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <array>
#include <cstring>
#include <type_traits>

#include "gradwire/codec/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Ints = hn::Vec<IntTag>;
using Words = hn::Vec<WordTag>;

inline constexpr std::size_t kTile = 1024;
// Outputs of at least this many elements are written past the caches, where
// they would not stay long.
inline constexpr std::int64_t kStreamElems = std::int64_t{4} << 20;

inline constexpr std::int32_t kAbsMask = 0x7fffffff;
inline constexpr std::int32_t kInfinityBits = 0x7f800000;

HWY_INLINE Ints abs_bits(Floats v) {
  const IntTag di;
  return hn::And(hn::BitCast(di, v), hn::Set(di, kAbsMask));
}

HWY_INLINE std::int32_t largest(Ints v) {
  const IntTag di;
  return hn::GetLane(hn::MaxOfLanes(di, v));
}

// The largest magnitude of many floats, as bits, which makes NaN the largest of
// all. (The constructor is written out: an implicit one would not be compiled
// for the right processor.)
struct Magnitudes {
  Ints largest_bits;

  HWY_INLINE Magnitudes() : largest_bits(hn::Zero(IntTag())) {}
  HWY_INLINE void add(Floats v) {
    largest_bits = hn::Max(largest_bits, abs_bits(v));
  }
  HWY_INLINE std::int32_t most_bits() const {
    return largest(largest_bits);
  }
  HWY_INLINE bool all_finite() const {
    return most_bits() < kInfinityBits;
  }
  // False if lanes differ, because then elements differ too.
  HWY_INLINE bool may_be_equal(std::int32_t most) const {
    const IntTag di;
    return hn::AllTrue(di, hn::Eq(largest_bits, hn::Set(di, most)));
  }
};

// Added to a float to round it, see to_integer().
inline constexpr float kToInteger = 0x1.8p23f;

// Integers as floats and as bits.
struct Rounded {
  Floats value;
  Ints code;
};

// Rounds to the nearest integer, half to even. Adding 1.5 * 2^23 and
// subtracting it again rounds floats below 2^22, and leaves the integer in the
// lowest bits. For larger floats the result is meaningless but defined; that of
// a conversion would not be.
HWY_INLINE Rounded to_integer(Floats v) {
  const FloatTag d;
  const IntTag di;
  const Floats shift = hn::Set(d, kToInteger);
  const Floats shifted = hn::Add(v, shift);
  return {
      hn::Sub(shifted, shift),
      hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, shift))};
}

// ---- Rounding noise --------------------------------------------------------

HWY_INLINE std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Uniform numbers in (0, 1), one for every element of a parameter: odd
// multiples of 2^-16. Adding one to a code of 8 bits is exact. A code that an
// earlier rounding moved by less than 2^-16 is still rounded to itself, so
// constants stay exact.
struct NoiseLanes {
  std::uint32_t first = 0;
  std::uint32_t key = 0;

  // For elements of `stream` from place `at` on.
  static NoiseLanes make(Noise noise, std::uint64_t stream, std::int64_t at) {
    const auto place = static_cast<std::uint64_t>(at);
    const std::uint64_t key = mix(mix(noise.key ^ mix(stream)) + (place >> 32));
    const auto low = static_cast<std::uint32_t>(key);
    return {
        static_cast<std::uint32_t>(place),
        low ^ static_cast<std::uint32_t>(key >> 32)};
  }

  HWY_INLINE Words bits(std::size_t i) const {
    const WordTag dw;
    const auto start = static_cast<std::uint32_t>(first + i);
    Words x = hn::Iota(dw, 0u);
    x = hn::Add(x, hn::Set(dw, start));
    x = hn::Xor(hn::Mul(x, hn::Set(dw, 0x9e3779b9u)), hn::Set(dw, key));
    x = hn::Xor(x, hn::ShiftRight<16>(x));
    x = hn::Mul(x, hn::Set(dw, 0x7feb352du));
    x = hn::Xor(x, hn::ShiftRight<15>(x));
    x = hn::Mul(x, hn::Set(dw, 0x846ca68bu));
    return hn::Xor(x, hn::ShiftRight<16>(x));
  }
  HWY_INLINE Ints bits16(std::size_t i) const {
    const WordTag dw;
    const Words top = hn::ShiftRight<16>(bits(i));
    return hn::BitCast(IntTag(), hn::Or(top, hn::Set(dw, 1u)));
  }
  HWY_INLINE Floats uniform(std::size_t i) const {
    const FloatTag d;
    return hn::Mul(hn::ConvertTo(d, bits16(i)), hn::Set(d, 0x1p-16f));
  }
};

// ---- Vectors of a tile -----------------------------------------------------

// Calls body(i, count, whole) for the vectors of a run. count is Lanes() except
// in the last one; whole says so as a constant.
template <class Body>
HWY_INLINE void each_vector(std::size_t n, const Body& body) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  std::size_t i = 0;
#pragma GCC unroll 2
  for (; i + lanes <= n; i += lanes) {
    body(i, lanes, std::true_type());
  }
  if (i < n) {
    body(i, n - i, std::false_type());
  }
}

template <bool kWhole>
HWY_INLINE Floats load(const float* from, std::size_t count) {
  const FloatTag d;
  if constexpr (kWhole) {
    return hn::LoadU(d, from);
  } else {
    HWY_ALIGN std::array<float, hn::MaxLanes(FloatTag())> lanes{};
    std::memcpy(lanes.data(), from, count * sizeof(float));
    return hn::Load(d, lanes.data());
  }
}

template <bool kWhole, bool kStream>
HWY_INLINE void store(Floats v, float* to, std::size_t count) {
  const FloatTag d;
  if constexpr (kWhole && kStream) {
    hn::Stream(v, d, to);
  } else if constexpr (kWhole) {
    hn::StoreU(v, d, to);
  } else {
    HWY_ALIGN std::array<float, hn::MaxLanes(FloatTag())> lanes;
    hn::Store(v, d, lanes.data());
    std::memcpy(to, lanes.data(), count * sizeof(float));
  }
}

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
