#include "tests/codec/integer_cases.h"

namespace gradwire::codec::test {
namespace {

TEST(Int4, SymmetricEqualsReference) {
  check_integers("scheme=symmetric", {.bits = 4});
}

TEST(Int4, AffineEqualsReference) {
  check_integers("scheme=affine", {.bits = 4, .affine = true});
}

TEST(Int4, SymmetricStochasticEqualsReference) {
  check_integers(
      "scheme=symmetric,rounding=stochastic", {.bits = 4, .stochastic = true});
}

TEST(Int4, AffineStochasticEqualsReference) {
  check_integers(
      "scheme=affine,rounding=stochastic",
      {.bits = 4, .affine = true, .stochastic = true});
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
  check_half_a_step_at_most(4);
}

}  // namespace
}  // namespace gradwire::codec::test
