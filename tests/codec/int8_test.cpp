#include "tests/codec/golden.h"
#include "tests/codec/integer_cases.h"

namespace gradwire::codec::test {
namespace {

TEST(Int8, SymmetricEqualsReference) {
  check_integers("scheme=symmetric", {.bits = 8});
}

TEST(Int8, AffineEqualsReference) {
  check_integers("scheme=affine", {.bits = 8, .affine = true});
}

TEST(Int8, SymmetricStochasticEqualsReference) {
  check_integers(
      "scheme=symmetric,rounding=stochastic", {.bits = 8, .stochastic = true});
}

TEST(Int8, AffineStochasticEqualsReference) {
  check_integers(
      "scheme=affine,rounding=stochastic",
      {.bits = 8, .affine = true, .stochastic = true});
}

TEST(Int8, KnownBytes) {
  const Message message =
      encode(make_codec("int8"), make_segments({4}), {127, -127, 2.5f, -1});
  const Message expected{
      'g', 'w', 8, 0, 4, 0, 0, 0, 0, 0, 0x80, 0x3f, 127, 0x81, 2, 0xff};
  EXPECT_TRUE(same_bytes(message, expected));
}

TEST(Int8, HalfAStepAtMost) {
  check_half_a_step_at_most(8);
}

TEST(Int8, SameBitsOnEveryProcessor) {
  check_golden("int8", "e2333bb64170bd5b");
  check_golden("int8:rounding=stochastic", "e04ca7ac430b3c28");
  check_golden("int8:scheme=affine", "59f4670013261c1e");
  check_golden("int8:scheme=affine,rounding=stochastic", "3ef3f5c61fe7b9e8");
  check_golden("int8:block=tensor", "d92f172b80f2e03b");
}

}  // namespace
}  // namespace gradwire::codec::test
