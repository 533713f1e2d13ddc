#include "gradwire/base/archive.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

constexpr ArchiveFormat kFormat{"gw tests", 7};

std::string example() {
  ArchiveWriter out(kFormat);
  out.begin("numbers");
  out.number(2);
  out.number(-5);
  out.number(std::int64_t{1} << 60);
  out.begin("texts");
  out.text("one");
  out.text("");
  out.raw("xyz", 3);
  out.begin("nothing");
  return std::move(out).finish();
}

std::string damage_of(
    const std::string& bytes, const ArchiveFormat& format = kFormat) {
  try {
    ArchiveReader(bytes, format);
  } catch (const DamagedError& e) {
    return e.reason();
  }
  return "none";
}

TEST(Archive, ReadsWhatWasWritten) {
  const std::string bytes = example();
  const ArchiveReader archive(bytes, kFormat);
  ByteReader numbers = archive.section("numbers");
  EXPECT_EQ(numbers.count(8), 2u);
  EXPECT_EQ(numbers.number(), -5);
  EXPECT_EQ(numbers.number(), std::int64_t{1} << 60);
  numbers.end();
  ByteReader texts = archive.section("texts");
  EXPECT_EQ(texts.text(), "one");
  EXPECT_EQ(texts.text(), "");
  EXPECT_THROW(texts.end(), DamagedError);
  EXPECT_EQ(texts.raw(3), "xyz");
  texts.end();
  archive.section("nothing").end();
  EXPECT_THROW(archive.section("more"), DamagedError);
}

TEST(Archive, SaysWhatItIsNot) {
  EXPECT_EQ(damage_of("something"), "they do not begin with 'gw tests'");
  EXPECT_EQ(
      damage_of(example(), {"gw tests", 8}),
      "they are of version 7, expected 8");
  EXPECT_EQ(
      damage_of(example().substr(0, 16)), "they end before their checksum");
}

TEST(Archive, EveryTruncationIsAnError) {
  const std::string bytes = example();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(damage_of(bytes.substr(0, size)), "none") << size;
  }
  EXPECT_NE(damage_of(bytes + "x"), "none");
}

TEST(Archive, EveryFlippedBitIsAnError) {
  const std::string bytes = example();
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    EXPECT_NE(damage_of(flipped), "none") << bit;
  }
}

// Who wrote the bytes can write their checksum too.
std::string with_checksum(std::string bytes) {
  bytes.resize(bytes.size() - 8);
  const std::uint64_t sum = fingerprint(bytes);
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(sum >> (8 * i)));
  }
  return bytes;
}

TEST(Archive, LengthsBeyondTheEndAreErrors) {
  const std::string bytes = example();
  ASSERT_EQ(with_checksum(bytes), bytes);
  // The length of the first section's name.
  for (const char length : {'\x06', '\x7f', '\xff'}) {
    std::string lie = bytes;
    lie[16] = length;
    EXPECT_NE(damage_of(with_checksum(lie)), "none");
    lie[23] = length;
    EXPECT_NE(damage_of(with_checksum(lie)), "none");
  }
  std::string twice = bytes;
  const std::size_t at = twice.find("nothing");
  twice.replace(at, 7, "numbers");
  EXPECT_EQ(
      damage_of(with_checksum(twice)), "there are two sections 'numbers'");
}

TEST(ByteReader, CountsNoMoreThanFits) {
  const std::string bytes("\x03\0\0\0\0\0\0\0abcdef", 14);
  EXPECT_EQ(ByteReader(bytes).count(2), 3u);
  EXPECT_THROW(ByteReader(bytes).count(3), DamagedError);
  EXPECT_THROW(ByteReader("abc").number(), DamagedError);
  EXPECT_THROW(ByteReader("abc").line(), DamagedError);
}

}  // namespace
}  // namespace gradwire
