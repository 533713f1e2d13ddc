#include "tests/codec/against_reference.h"
#include "tests/codec/integer_reference.h"

namespace gradwire::codec::test {
namespace {

void check_all_blocks(const std::string& options, IntegerOptions expected) {
  expected.bits = 8;
  for (const std::int64_t block : {32, 33, 512, 2048, 0}) {
    expected.block = block;
    const std::string name = block > 0 ? std::to_string(block) : "tensor";
    check_against(
        "int8:block=" + name + "," + options, IntegerReference(expected));
  }
}

TEST(Int8, SymmetricEqualsReference) {
  check_all_blocks("scheme=symmetric", {});
}

TEST(Int8, AffineEqualsReference) {
  check_all_blocks("scheme=affine", {.affine = true});
}

TEST(Int8, SymmetricStochasticEqualsReference) {
  check_all_blocks(
      "scheme=symmetric,rounding=stochastic", {.stochastic = true});
}

TEST(Int8, AffineStochasticEqualsReference) {
  check_all_blocks(
      "scheme=affine,rounding=stochastic",
      {.affine = true, .stochastic = true});
}

TEST(Int8, KnownBytes) {
  const Message message =
      encode(make_codec("int8"), make_segments({4}), {127, -127, 2.5f, -1});
  const Message expected{
      'g', 'w', 8, 0, 4, 0, 0, 0, 0, 0, 0x80, 0x3f, 127, 0x81, 2, 0xff};
  EXPECT_TRUE(same_bytes(message, expected));
}

TEST(Int8, HalfAStepAtMost) {
  for (const char* scheme : {"symmetric", "affine"}) {
    const Codec codec = make_codec(std::string("int8:scheme=") + scheme);
    const Floats values = make_values(Kind::kNormal, 512, 5);
    const auto [low, high] = std::ranges::minmax(values);
    const float most = std::max(-low, high);
    const float step = scheme[0] == 's' ? most / 127 : (high - low) / 255;
    const Segments segments = make_segments({512});
    const Floats decoded =
        decode(codec, segments, encode(codec, segments, values));
    float worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      worst = std::max(worst, std::fabs(values[i] - decoded[i]));
    }
    EXPECT_LE(worst, step / 2 * 1.0001f) << scheme;
    EXPECT_GT(worst, step / 2 * 0.9f) << scheme;
  }
}

}  // namespace
}  // namespace gradwire::codec::test
