// Rounding at random: right on average, and the same whatever is cut where.

#include "tests/codec/inputs.h"
#include "tests/codec/specs.h"

namespace gradwire::codec::test {
namespace {

std::vector<std::string> stochastic_variants() {
  std::vector<std::string> specs;
  for (const std::string& spec : all_variants()) {
    if (make_codec(spec).is_stochastic()) {
      specs.push_back(spec);
    }
  }
  return specs;
}

TEST(Stochastic, IntegersAndFp8CanDoIt) {
  EXPECT_EQ(stochastic_variants().size(), 6u);
}

TEST(Stochastic, TheMeanIsTheValue) {
  constexpr std::size_t kElems = 256;
  constexpr int kKeys = 2000;
  const Segments segments = make_segments({kElems});
  const Floats values = make_values(Kind::kNormal, kElems, 1);
  for (const std::string& spec : stochastic_variants()) {
    SCOPED_TRACE(spec);
    const Codec codec = make_codec(spec);
    std::vector<double> sum(kElems, 0.0);
    std::vector<double> squares(kElems, 0.0);
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      const Floats decoded = decode(
          codec, segments, encode(codec, segments, values, {.key = key}));
      for (std::size_t i = 0; i < kElems; ++i) {
        const double error = double{decoded[i]} - double{values[i]};
        sum[i] += error;
        squares[i] += error * error;
      }
    }
    const auto [low, high] = std::ranges::minmax(values);
    const std::string name = spec.substr(0, spec.find(':'));
    const double step = find_codec(name).tolerance * std::max(-low, high);
    double all = 0;
    double variance = 0;
    for (std::size_t i = 0; i < kElems; ++i) {
      // Five standard deviations; and where a rare side may have been drawn
      // never, twelve of it, which has a chance of exp(-12).
      const double deviation = std::sqrt(squares[i]);
      ASSERT_LE(std::fabs(sum[i]), 5 * deviation + 12 * step)
          << "element " << i;
      all += sum[i];
      variance += squares[i];
    }
    EXPECT_GT(variance, 0);
    EXPECT_LE(std::fabs(all), 5 * std::sqrt(variance));
  }
}

TEST(Stochastic, DoesNotDependOnCuts) {
  constexpr std::int64_t kBlock = 64;
  constexpr std::int64_t kElems = 40 * kBlock + 5;
  const Noise noise{.key = 77};
  const Floats values = make_values(Kind::kNormal, kElems, 1);
  for (const std::string& variant : stochastic_variants()) {
    const std::string spec = with_block(variant, "64");
    SCOPED_TRACE(spec);
    const Codec codec = make_codec(spec);
    const Segments whole{{kElems, 5, 0}};
    const Floats expected =
        decode(codec, whole, encode(codec, whole, values, noise));
    for (const std::int64_t parts : {2, 3, 7, 41}) {
      Floats got;
      for (const Segments& part : split(whole, kBlock, parts)) {
        const auto n = count_elems(part);
        const auto* begin = values.data() + got.size();
        const Floats piece(begin, begin + n);
        const Floats decoded =
            decode(codec, part, encode(codec, part, piece, noise));
        got.insert(got.end(), decoded.begin(), decoded.end());
      }
      EXPECT_TRUE(same_floats(got, expected)) << parts << " parts";
    }
    // Behind another parameter in one message.
    Floats both = make_values(Kind::kNormal, 99, 2);
    both.insert(both.end(), values.begin(), values.end());
    const Segments two{{99, 4, 0}, {kElems, 5, 0}};
    const Floats decoded = decode(codec, two, encode(codec, two, both, noise));
    EXPECT_TRUE(same_floats({decoded.data() + 99, expected.size()}, expected));
  }
}

// How often two encodings of a value halfway between two codes agree.
double agreement(
    const Codec& codec, Segment a, Noise noise_a, Segment b, Noise noise_b) {
  const auto n = static_cast<std::size_t>(a.elems);
  Floats values(n, 0.5f);
  values[0] = 127;
  const Segments segments_a{a};
  const Segments segments_b{b};
  const Message first = encode(codec, segments_a, values, noise_a);
  const Message second = encode(codec, segments_b, values, noise_b);
  std::size_t same = 0;
  for (std::size_t i = first.size() - n + 1; i < first.size(); ++i) {
    same += first[i] == second[i] ? 1 : 0;
  }
  return static_cast<double>(same) / static_cast<double>(n - 1);
}

TEST(Stochastic, KeysParametersAndPlacesDrawIndependently) {
  constexpr std::int64_t kElems = 32768;
  const Codec codec = make_codec("int8:block=32768,rounding=stochastic");
  // Five standard deviations of a fair coin.
  const double bound = 5 * 0.5 / std::sqrt(double{kElems});
  const Segment here{kElems, 5, 0};
  EXPECT_EQ(agreement(codec, here, {1}, here, {1}), 1.0);
  EXPECT_NEAR(agreement(codec, here, {1}, here, {2}), 0.5, bound);
  EXPECT_NEAR(agreement(codec, here, {1}, {kElems, 6, 0}, {1}), 0.5, bound);
  EXPECT_NEAR(
      agreement(codec, here, {1}, {kElems, 5, kElems}, {1}), 0.5, bound);
  const std::int64_t far = std::int64_t{1} << 32;
  EXPECT_NEAR(agreement(codec, here, {1}, {kElems, 5, far}, {1}), 0.5, bound);
}

TEST(Stochastic, NeighboursDrawIndependently) {
  constexpr std::size_t kElems = 1 << 16;
  const Codec codec = make_codec("int8:block=tensor,rounding=stochastic");
  Floats values(kElems, 0.5f);
  values[0] = 127;
  const Segments segments = make_segments({kElems});
  const Floats decoded =
      decode(codec, segments, encode(codec, segments, values, {.key = 4}));
  for (const std::size_t lag : {1u, 2u, 8u, 16u, 512u, 1024u}) {
    double same = 0;
    for (std::size_t i = 1; i + lag < kElems; ++i) {
      same += decoded[i] == decoded[i + lag] ? 1 : 0;
    }
    const auto pairs = static_cast<double>(kElems - lag - 1);
    EXPECT_NEAR(same / pairs, 0.5, 5 * 0.5 / std::sqrt(pairs)) << lag;
  }
}

}  // namespace
}  // namespace gradwire::codec::test
