// Messages come from the network: what is not a message is an error, and has
// not been acted upon.

#include "tests/codec/inputs.h"
#include "tests/codec/specs.h"
#include "tests/support/expect.h"

namespace gradwire::codec::test {
namespace {

constexpr float kUntouched = 123.0f;

// Decodes and reduces with the message last, behind good ones.
void expect_refused(
    const Codec& codec,
    const Segments& segments,
    const Message& good,
    const Message& bad,
    const std::string& text) {
  const std::vector<Codec::ConstBytes> messages{good, bad};
  Floats out(static_cast<std::size_t>(count_elems(segments)), kUntouched);
  EXPECT_ERROR(
      Error,
      codec.decode(segments, messages, out.data()),
      "[gradwire.codec] a message of " + codec.name() + " has ",
      text);
  Message reduced(good.size(), 7);
  EXPECT_ERROR(
      Error,
      codec.reduce(segments, messages, 2, reduced, out.data()),
      "[gradwire.codec] a message of " + codec.name() + " has ",
      text);
  EXPECT_EQ(out, Floats(out.size(), kUntouched));
  EXPECT_EQ(reduced, Message(good.size(), 7));
}

TEST(Damaged, EveryTruncationAndOneByteTooMany) {
  const Segments segments = make_segments({40, 0, 3});
  for (const std::string& variant : all_variants()) {
    for (const char* block : {"32", "tensor"}) {
      const Codec codec = make_codec(with_block(variant, block));
      SCOPED_TRACE(variant);
      const Message good =
          encode(codec, segments, make_values(Kind::kNormal, 43, 1));
      const std::string expected =
          "bytes, expected " + std::to_string(good.size());
      for (std::size_t n = 0; n <= good.size() + 1; ++n) {
        if (n != good.size()) {
          Message bad(good.begin(), good.begin() + std::min(n, good.size()));
          bad.resize(n);
          expect_refused(codec, segments, good, bad, expected);
        }
      }
    }
  }
}

TEST(Damaged, EveryBitOfTheHeader) {
  const Segments segments = make_segments({40, 3});
  for (const std::string& spec : all_variants()) {
    const Codec codec = make_codec(spec);
    SCOPED_TRACE(spec);
    const Message good =
        encode(codec, segments, make_values(Kind::kNormal, 43, 1));
    for (std::size_t byte = 0; byte < kHeaderBytes; ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        Message bad = good;
        bad[byte] = static_cast<std::uint8_t>(bad[byte] ^ (1 << bit));
        expect_refused(codec, segments, good, bad, "a damaged header");
      }
    }
  }
}

TEST(Damaged, MessagesOfOtherCodecsOfTheSameLength) {
  const Segments segments = make_segments({512});
  const Message int8 =
      encode(make_codec("int8"), segments, make_values(Kind::kNormal, 512, 1));
  const Codec fp8 = make_codec("fp8");
  const Message good = encode(fp8, segments, Floats(512, 1.0f));
  ASSERT_EQ(int8.size(), good.size());
  expect_refused(fp8, segments, good, int8, "a damaged header");
}

// In the last of three blocks, where the scale of each can be found.
TEST(Damaged, ScalesThatNoEncoderWrites) {
  const Segments segments = make_segments({70});
  struct Row {
    const char* spec;
    // From the end of the message, for 6 elements in the last block.
    std::size_t from_end;
    std::vector<float> scales;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<Row> rows{
      {"int8:block=32", 6 + 4, {-1.0f, -0.0f, -infinity}},
      {"int4:block=32", 3 + 4, {-1.0f, -0.0f, -infinity}},
      {"fp8:block=32", 6 + 4, {-1.0f, -0.0f, -infinity}},
      {"int8:block=32,scheme=affine", 6 + 4, {-1.0f, infinity, NAN}},
      {"int4:block=32,scheme=affine", 3 + 4, {-1.0f, infinity, NAN}}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.spec);
    const Codec codec = make_codec(row.spec);
    const Message good =
        encode(codec, segments, make_values(Kind::kNormal, 70, 1));
    const std::size_t at = good.size() - row.from_end;
    // Affine scales begin with the smallest element.
    const bool affine = std::string(row.spec).ends_with("affine");
    const std::size_t begin = affine ? at - 4 : at;
    for (const float scale : row.scales) {
      Message bad = good;
      std::memcpy(bad.data() + at, &scale, 4);
      expect_refused(
          codec,
          segments,
          good,
          bad,
          "a damaged scale at byte " + std::to_string(begin));
    }
  }
}

TEST(Damaged, OneScaleOfAnEmptyMessageToo) {
  const Codec codec = make_codec("int8:block=tensor");
  const Segments segments = make_segments({0});
  const Message good = encode(codec, segments, {});
  Message bad = good;
  bad.at(11) = 0x80;
  expect_refused(codec, segments, good, bad, "a damaged scale at byte 8");
}

TEST(Damaged, RoomForAnotherNumberOfBytes) {
  const Codec codec = make_codec("int8");
  const Segments segments = make_segments({10});
  const Floats values(10, 1.0f);
  Message small(21);
  EXPECT_ERROR(
      Error,
      codec.encode(segments, values.data(), small),
      "got room for 21 bytes, expected 22");
  const Message message = encode(codec, segments, values);
  const Codec::ConstBytes bytes(message);
  Message large(23);
  EXPECT_ERROR(
      Error,
      codec.reduce(segments, {&bytes, 1}, 1, large),
      "got room for 23 bytes, expected 22");
}

// Buffers of the network begin anywhere.
TEST(Damaged, MessagesAtOddAddressesAreNot) {
  const Segments segments = make_segments({700, 33});
  const Floats values = make_values(Kind::kNormal, 733, 1);
  for (const std::string& spec : all_variants()) {
    SCOPED_TRACE(spec);
    on_every_target([&] {
      const Codec codec = make_codec(spec);
      const Message good = encode(codec, segments, values);
      const Floats expected = decode(codec, segments, good);
      Message memory(good.size() + 1);
      const Codec::Bytes odd(memory.data() + 1, good.size());
      codec.encode(segments, values.data(), odd);
      EXPECT_TRUE(std::ranges::equal(odd, good));
      const Codec::ConstBytes input(odd);
      Floats decoded(733);
      codec.decode(segments, {&input, 1}, decoded.data());
      EXPECT_TRUE(same_floats(decoded, expected));
      Message reduced(good.size() + 1);
      codec.reduce(segments, {&input, 1}, 1, {reduced.data() + 1, good.size()});
    });
  }
}

TEST(Damaged, ADivisorIsOneOrMore) {
  const Codec codec = make_codec("int8");
  const Segments segments = make_segments({3});
  const Message message = encode(codec, segments, {1, 2, 3});
  const Codec::ConstBytes input(message);
  Floats out(3);
  for (const float bad : {0.0f, 0.5f, -1.0f, std::nanf("")}) {
    EXPECT_ERROR(
        Error,
        codec.decode(segments, {&input, 1}, out.data(), bad),
        "to divide by, expected 1 or more");
  }
}

}  // namespace
}  // namespace gradwire::codec::test
