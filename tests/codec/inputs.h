#pragma once

// What codecs are tested with: floats of many kinds, cut in many ways, on every
// kind of processor that this one can stand in for.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gradwire/codec/codec.h"
#include "tests/codec/reference.h"

namespace gradwire::codec::test {

enum class Kind {
  kNormal,
  kHeavyTailed,
  kHuge,
  kTiny,
  kTiniest,
  kManyZeros,
  kConstant,
  kPlusMinus,
  kFarFromZero,
  kZero,
};
inline const std::vector<Kind> kKinds{
    Kind::kNormal,
    Kind::kHeavyTailed,
    Kind::kHuge,
    Kind::kTiny,
    Kind::kTiniest,
    Kind::kManyZeros,
    Kind::kConstant,
    Kind::kPlusMinus,
    Kind::kFarFromZero,
    Kind::kZero};

inline Floats make_values(Kind kind, std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Floats values(n);
  for (float& v : values) {
    const double z = normal(random);
    switch (kind) {
      case Kind::kNormal:
        v = static_cast<float>(z * 0.01);
        break;
      case Kind::kHeavyTailed:
        v = static_cast<float>(z * std::exp(4 * normal(random)));
        break;
      case Kind::kHuge:
        // Up to the largest float, from both sides.
        v = static_cast<float>(std::clamp(z, -3.0, 3.0) * 0x1.55555p126);
        break;
      case Kind::kTiny:
        v = static_cast<float>(z * 1e-40);
        break;
      case Kind::kTiniest:
        v = static_cast<float>(z * 1e-43);
        break;
      case Kind::kManyZeros:
        v = static_cast<float>(random() % 4 == 0 ? z : 0.0 * z);
        break;
      case Kind::kConstant:
        v = static_cast<float>(0.1 * (seed % 7 + 1));
        break;
      case Kind::kPlusMinus:
        v = z < 0 ? -0.7f : 0.7f;
        break;
      case Kind::kFarFromZero:
        v = static_cast<float>(1000 + z);
        break;
      case Kind::kZero:
        v = 0;
        break;
    }
  }
  return values;
}

// Segments one after another, each of a parameter of its own.
inline Segments make_segments(const std::vector<std::int64_t>& lengths) {
  Segments segments;
  for (const std::int64_t elems : lengths) {
    segments.push_back({elems, 1000 + segments.size(), 0});
  }
  return segments;
}

inline const std::vector<std::vector<std::int64_t>> kLengths{
    {0},
    {1},
    {2},
    {7},
    {15},
    {16},
    {17},
    {31},
    {33},
    {511},
    {512},
    {513},
    {1023},
    {1024},
    {1025},
    {5000},
    {},
    {0, 0}};
inline const std::vector<std::vector<std::int64_t>> kRaggedLengths{
    {700, 1, 0, 513, 33}, {3, 2049, 5, 31}};

// Calls body() once for every kind of vectors there is, with codecs made inside
// of it using them.
template <class Body>
void on_every_target(const Body& body) {
  hwy::SetSupportedTargetsForTest(0);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

// Bits, so that -0 is not 0; NaN is NaN whatever its bits.
inline ::testing::AssertionResult same_floats(
    std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << got.size() << " elements, expected " << expected.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool same = std::memcmp(&got[i], &expected[i], sizeof(float)) == 0;
    if (!same && !(std::isnan(got[i]) && std::isnan(expected[i]))) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << got.size() << " is " << got[i]
             << ", expected " << expected[i];
    }
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult same_bytes(
    const Message& got, const Message& expected) {
  if (got.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << got.size() << " bytes, expected " << expected.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) {
      return ::testing::AssertionFailure()
             << "byte " << i << " of " << got.size() << " is " << int{got[i]}
             << ", expected " << int{expected[i]};
    }
  }
  return ::testing::AssertionSuccess();
}

// The plain operations with results that are returned.
inline Message encode(
    const Codec& codec,
    const Segments& segments,
    const Floats& values,
    Noise noise = {}) {
  Message message(codec.message_bytes(segments));
  codec.encode(segments, values.data(), message, {}, noise);
  return message;
}

inline Floats decode(
    const Codec& codec, const Segments& segments, const Message& message) {
  Floats values(static_cast<std::size_t>(count_elems(segments)));
  const Codec::ConstBytes bytes(message);
  codec.decode(segments, {&bytes, 1}, values.data());
  return values;
}

}  // namespace gradwire::codec::test
