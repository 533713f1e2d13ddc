#include "tests/codec/against_reference.h"
#include "tests/codec/cast_reference.h"
#include "tests/codec/golden.h"

namespace gradwire::codec::test {
namespace {

const CastReference kFp16Reference(16, {.mantissa_bits = 10, .bias = 15});

TEST(Fp16, EqualsReference) {
  check_against("fp16", kFp16Reference);
}

TEST(Fp16, EveryHalfDecodesAndEncodesToItself) {
  const Segments segments = make_segments({1 << 16});
  Floats values(1 << 16);
  for (std::uint32_t code = 0; code < values.size(); ++code) {
    values[code] = kFp16Reference.get(code, {});
  }
  const Message expected = kFp16Reference.encode(segments, values, 0);
  on_every_target([&] {
    const Codec codec = make_codec("fp16");
    const Message message = encode(codec, segments, values);
    EXPECT_TRUE(same_bytes(message, expected));
    EXPECT_TRUE(same_floats(decode(codec, segments, message), values));
  });
}

// Just below, at and just above the middle between any two neighbours, up to
// where halves end.
TEST(Fp16, RoundsToNearestEvenBetweenAllNeighbours) {
  Floats values;
  for (std::uint32_t code = 0; code < 0x7c00; ++code) {
    const float low = kFp16Reference.get(code, {});
    const float high =
        code == 0x7bff ? 65536.0f : kFp16Reference.get(code + 1, {});
    const float middle = low + (high - low) / 2;
    for (const float v :
         {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, high)}) {
      values.push_back(v);
      values.push_back(-v);
    }
  }
  const Segments segments =
      make_segments({static_cast<std::int64_t>(values.size())});
  const Message expected = kFp16Reference.encode(segments, values, 0);
  on_every_target([&] {
    EXPECT_TRUE(
        same_bytes(encode(make_codec("fp16"), segments, values), expected));
  });
}

TEST(Fp16, KnownBits) {
  const Segments segments = make_segments({8});
  const Message message = encode(
      make_codec("fp16"),
      segments,
      {1.0f, -2.0f, 65504.0f, 65520.0f, 0x1p-24f, 0x1p-25f, 0.1f, -0.0f});
  const std::vector<std::uint16_t> expected{
      0x3c00, 0xc000, 0x7bff, 0x7c00, 0x0001, 0x0000, 0x2e66, 0x8000};
  std::vector<std::uint16_t> codes(8);
  std::memcpy(codes.data(), message.data() + 8, 16);
  EXPECT_EQ(codes, expected);
}

TEST(Fp16, SameBitsOnEveryProcessor) {
  check_golden("fp16", "1967d2159fc5655");
}

}  // namespace
}  // namespace gradwire::codec::test
