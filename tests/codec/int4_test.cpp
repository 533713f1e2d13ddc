#include "tests/codec/golden.h"
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

TEST(Int4, SameBitsOnEveryProcessor) {
  check_golden("int4", "498cf026c9e8ec6c");
  check_golden("int4:rounding=stochastic", "e7e8754b9789099");
  check_golden("int4:scheme=affine", "a6b062cb9f7c80dd");
  check_golden("int4:scheme=affine,rounding=stochastic", "eb1ece6722167e62");
  check_golden("int4:block=tensor", "3c7735a9317d4881");
}

}  // namespace
}  // namespace gradwire::codec::test
