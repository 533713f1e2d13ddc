#include "tests/codec/against_reference.h"
#include "tests/codec/golden.h"
#include "tests/codec/scale_reference.h"
#include "tests/codec/small_float.h"

namespace gradwire::codec::test {
namespace {

struct Fp8Options {
  bool e5m2 = false;
  bool stochastic = false;
  std::int64_t block = 512;
};

class Fp8Reference : public Reference {
 public:
  explicit Fp8Reference(Fp8Options options)
      : Reference(
            {.id = 80,
             .variant = options.e5m2,
             .code_bits = 8,
             .scale_floats = 1,
             .block = options.block}),
        stochastic_(options.stochastic),
        most_(options.e5m2 ? 57344 : 448),
        format_(
            options.e5m2 ? SmallFloat{.mantissa_bits = 2, .bias = 15}
                         : SmallFloat{.mantissa_bits = 3, .bias = 7}) {}

  Scale measure(std::span<const float> block) const override {
    return {symmetric_step(block, most_)};
  }
  std::uint32_t put(float v, Scale scale, std::uint32_t noise) const override {
    const float by = prescale(scale[0]);
    const float reciprocal = scale[0] > 0 ? 1 / (scale[0] * by) : 0;
    const float scaled = v * by * reciprocal;
    const double size = std::min(std::fabs(scaled), most_);
    const double rounded =
        stochastic_ ? at_random(size, noise) : format_.nearest(size);
    const double sent = std::min(rounded, static_cast<double>(most_));
    return format_.code(sent) | (std::signbit(scaled) ? 0x80u : 0u);
  }
  float get(std::uint32_t code, Scale scale) const override {
    const auto size = static_cast<float>(format_.value(code & 0x7f)) * scale[0];
    return code >= 0x80 ? -size : size;
  }

 private:
  double at_random(double size, std::uint32_t noise) const {
    const double quantum = format_.quantum(size);
    const bool is_small = size < std::ldexp(1.0, 1 - format_.bias);
    double quanta = size / quantum + noise_uniform(noise);
    if (is_small) {
      quanta = static_cast<float>(quanta);
    }
    return std::floor(quanta) * quantum;
  }

  bool stochastic_;
  float most_;
  SmallFloat format_;
};

void check_fp8(const std::string& options, const Fp8Options& expected) {
  check_all_blocks("fp8", options, [&](std::int64_t block) {
    Fp8Options with_block = expected;
    with_block.block = block;
    return Fp8Reference(with_block);
  });
}

TEST(Fp8, E4m3EqualsReference) {
  check_fp8("format=e4m3", {});
}

TEST(Fp8, E5m2EqualsReference) {
  check_fp8("format=e5m2", {.e5m2 = true});
}

TEST(Fp8, E4m3StochasticEqualsReference) {
  check_fp8("format=e4m3,rounding=stochastic", {.stochastic = true});
}

TEST(Fp8, E5m2StochasticEqualsReference) {
  check_fp8(
      "format=e5m2,rounding=stochastic", {.e5m2 = true, .stochastic = true});
}

// With the largest float in the block the scale is 1, and floats of the format
// are themselves.
void expect_exact(const std::string& spec, const SmallFloat& format, int most) {
  Floats values;
  for (std::uint32_t code = 0; code <= format.code(most); ++code) {
    const auto v = static_cast<float>(format.value(code));
    values.push_back(v);
    values.push_back(-v);
  }
  const Segments segments =
      make_segments({static_cast<std::int64_t>(values.size())});
  on_every_target([&] {
    const Codec codec = make_codec(spec);
    const Message message = encode(codec, segments, values);
    EXPECT_TRUE(same_floats(decode(codec, segments, message), values));
  });
}

TEST(Fp8, FloatsOfTheFormatAreExact) {
  expect_exact("fp8", {.mantissa_bits = 3, .bias = 7}, 448);
  expect_exact("fp8:format=e5m2", {.mantissa_bits = 2, .bias = 15}, 57344);
}

TEST(Fp8, KnownBytes) {
  const Segments segments = make_segments({4});
  const Message e4m3 =
      encode(make_codec("fp8"), segments, {448, -1, 0x1p-9f, 0x1p-10f});
  EXPECT_TRUE(same_bytes(
      e4m3, {'g', 'w', 80, 0, 4, 0, 0, 0, 0, 0, 0x80, 0x3f, 0x7e, 0xb8, 1, 0}));
  const Message e5m2 = encode(
      make_codec("fp8:format=e5m2"), segments, {57344, -1, 0x1p-16f, 0x1p-17f});
  EXPECT_TRUE(same_bytes(
      e5m2, {'g', 'w', 80, 1, 4, 0, 0, 0, 0, 0, 0x80, 0x3f, 0x7b, 0xbc, 1, 0}));
}

TEST(Fp8, SameBitsOnEveryProcessor) {
  check_golden("fp8", "b70bcc1b31c70d3b");
  check_golden("fp8:rounding=stochastic", "caabb6fe8e017d2d");
  check_golden("fp8:format=e5m2", "38b642d220fcd78b");
  check_golden("fp8:format=e5m2,rounding=stochastic", "3741f0929c28ee5e");
  check_golden("fp8:block=tensor", "6f5cd41c55a0cb6c");
}

}  // namespace
}  // namespace gradwire::codec::test
