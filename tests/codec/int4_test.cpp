#include "tests/codec/against_reference.h"
#include "tests/codec/integer_reference.h"

namespace gradwire::codec::test {
namespace {

void check_all_blocks(const std::string& options, IntegerOptions expected) {
  expected.bits = 4;
  for (const std::int64_t block : {32, 33, 512, 2048, 0}) {
    expected.block = block;
    const std::string name = block > 0 ? std::to_string(block) : "tensor";
    check_against(
        "int4:block=" + name + "," + options, IntegerReference(expected));
  }
}

TEST(Int4, SymmetricEqualsReference) {
  check_all_blocks("scheme=symmetric", {});
}

TEST(Int4, AffineEqualsReference) {
  check_all_blocks("scheme=affine", {.affine = true});
}

TEST(Int4, SymmetricStochasticEqualsReference) {
  check_all_blocks(
      "scheme=symmetric,rounding=stochastic", {.stochastic = true});
}

TEST(Int4, AffineStochasticEqualsReference) {
  check_all_blocks(
      "scheme=affine,rounding=stochastic",
      {.affine = true, .stochastic = true});
}

// The even element is in the low half of a byte.
TEST(Int4, KnownBytes) {
  const Message message =
      encode(make_codec("int4"), make_segments({5}), {7, -7, 2.5f, -1, 1});
  const Message expected{
      'g', 'w', 4, 0, 5, 0, 0, 0, 0, 0, 0x80, 0x3f, 0x1f, 0x7a, 0x09};
  EXPECT_TRUE(same_bytes(message, expected));
}

TEST(Int4, HalfAStepAtMost) {
  for (const char* scheme : {"symmetric", "affine"}) {
    const Codec codec = make_codec(std::string("int4:scheme=") + scheme);
    const Floats values = make_values(Kind::kNormal, 512, 5);
    const auto [low, high] = std::ranges::minmax(values);
    const float most = std::max(-low, high);
    const float step = scheme[0] == 's' ? most / 7 : (high - low) / 15;
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
