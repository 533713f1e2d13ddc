#include <gtest/gtest.h>

#include <set>

#include "gradwire/codec/codec.h"
#include "tests/codec/inputs.h"
#include "tests/codec/specs.h"
#include "tests/support/expect.h"

namespace gradwire::codec::test {
namespace {

TEST(Registry, RowsAreComplete) {
  std::set<std::string> names;
  std::set<int> ids;
  for (const CodecInfo& info : codecs()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_FALSE(info.summary.empty());
    EXPECT_GT(info.tolerance, 0);
    EXPECT_EQ(&find_codec(info.name), &info);
    const Codec codec = make_codec(info.name);
    EXPECT_EQ(codec.name(), info.name);
    const Message message = encode(codec, {}, {});
    EXPECT_TRUE(ids.insert(message[2]).second) << info.name;
  }
  EXPECT_GE(names.size(), 5u);
}

TEST(Registry, HeadersTellVariantsApart) {
  EXPECT_EQ(encode(make_codec("int8"), {}, {})[3], 0);
  EXPECT_EQ(encode(make_codec("int8:scheme=affine"), {}, {})[3], 1);
  EXPECT_EQ(encode(make_codec("fp8:format=e5m2"), {}, {})[3], 1);
}

TEST(Registry, BytesOfMessages) {
  const Segments segments = make_segments({1025, 3});
  const auto expect = [&](const char* spec, int payload, int metadata) {
    const gradwire::Bytes parts = make_codec(spec).message_parts(segments);
    EXPECT_EQ(parts.payload, payload) << spec;
    EXPECT_EQ(parts.metadata, metadata) << spec;
    EXPECT_EQ(
        make_codec(spec).message_bytes(segments),
        static_cast<std::size_t>(payload + metadata));
  };
  expect("fp16", 2056, 8);
  expect("bf16", 2056, 8);
  expect("int8", 1028, 8 + 4 * 4);
  expect("int8:scheme=affine", 1028, 8 + 4 * 8);
  expect("int8:block=tensor", 1028, 8 + 4);
  expect("int4", 512 + 1 + 2, 8 + 4 * 4);
  expect("int4:block=33", 31 * 17 + 1 + 2, 8 + 33 * 4);
  expect("int4:block=tensor", 513 + 2, 8 + 4);
  expect("fp8", 1028, 8 + 4 * 4);
}

TEST(Registry, CutsAndScales) {
  EXPECT_EQ(make_codec("int8").cut(), 512);
  EXPECT_EQ(make_codec("int8:block=64").cut(), 64);
  EXPECT_FALSE(make_codec("int8").has_one_scale());
  EXPECT_TRUE(make_codec("int4:block=tensor").has_one_scale());
  EXPECT_FALSE(make_codec("bf16").has_one_scale());
  EXPECT_GT(make_codec("bf16").cut(), 0);
}

TEST(Registry, ErrorsSayWhatWouldBeRight) {
  EXPECT_ERROR(
      Error,
      make_codec("int9"),
      "[gradwire.codec] unknown codec 'int9', known are fp16, bf16, int8",
      "did you mean 'int8'?");
  EXPECT_ERROR(
      Error,
      make_codec("int8:block=7"),
      "option 'block' of 'int8' got '7'",
      "integer from 32 to 1048576",
      "tensor");
  EXPECT_ERROR(Error, make_codec("fp8:block=1048577"), "got '1048577'");
  EXPECT_ERROR(Error, make_codec("int8:block=row"), "got 'row'");
  EXPECT_ERROR(
      Error,
      make_codec("int4:scheme=foo"),
      "option 'scheme' of 'int4' got 'foo'",
      "one of symmetric, affine");
  EXPECT_ERROR(
      Error,
      make_codec("int4:rounding=up"),
      "got 'up'",
      "one of nearest, stochastic");
  EXPECT_ERROR(
      Error, make_codec("fp8:format=e3m4"), "got 'e3m4'", "one of e4m3, e5m2");
  EXPECT_ERROR(Error, make_codec("bf16:block=512"), "'block'", "'bf16'");
  EXPECT_ERROR(
      Error, make_codec("int8(bf16)"), "'int8' takes nothing in parentheses");
}

}  // namespace
}  // namespace gradwire::codec::test
