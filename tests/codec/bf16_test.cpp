#include "tests/codec/against_reference.h"
#include "tests/codec/cast_reference.h"
#include "tests/codec/golden.h"

namespace gradwire::codec::test {
namespace {

const CastReference kBf16Reference(17, {.mantissa_bits = 7, .bias = 127});

TEST(Bf16, EqualsReference) {
  check_against("bf16", kBf16Reference);
}

// NaN of any payload stays NaN, of the same sign.
TEST(Bf16, EveryPatternOfTheUpperHalfAndItsNeighbours) {
  Floats values;
  for (std::uint32_t high = 0; high < 1 << 16; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  const Segments segments =
      make_segments({static_cast<std::int64_t>(values.size())});
  const Message expected = kBf16Reference.encode(segments, values, 0);
  on_every_target([&] {
    EXPECT_TRUE(
        same_bytes(encode(make_codec("bf16"), segments, values), expected));
  });
}

TEST(Bf16, KnownBits) {
  const Segments segments = make_segments({6});
  const Message message = encode(
      make_codec("bf16"),
      segments,
      {1.0f, -2.0f, 3e38f, 3.4e38f, 0x1.01p0f, 0x1.03p0f});
  const std::vector<std::uint16_t> expected{
      0x3f80, 0xc000, 0x7f62, 0x7f80, 0x3f80, 0x3f82};
  std::vector<std::uint16_t> codes(6);
  std::memcpy(codes.data(), message.data() + 8, 12);
  EXPECT_EQ(codes, expected);
}

TEST(Bf16, SameBitsOnEveryProcessor) {
  check_golden("bf16", "5d62108ab975653a");
}

}  // namespace
}  // namespace gradwire::codec::test
