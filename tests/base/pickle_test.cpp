#include "gradwire/base/pickle.h"

#include <gtest/gtest.h>

#include "gradwire/base/byte_reader.h"
#include "tests/base/pickle_text.h"
#include "tests/support/expect.h"

namespace gradwire {
namespace {

using test::text_of_pickle;

// A pickle with these opcodes.
std::string pickle(const std::string& opcodes) {
  return "\x80\x02" + opcodes + ".";
}

std::string reason_of(const std::string& bytes, std::size_t tensors = 0) {
  try {
    return "read: " + text_of_pickle(bytes, tensors);
  } catch (const DamagedError& e) {
    return e.reason();
  }
}

std::string name(const std::string& function) {
  return "ctorch.jit._pickle\n" + function + "\n";
}

using namespace std::string_literals;

TEST(Pickle, PlainValues) {
  EXPECT_EQ(text_of_pickle(pickle("N")), "none");
  EXPECT_EQ(text_of_pickle(pickle("\x88\x89\x86")), "(true, false)");
  EXPECT_EQ(
      text_of_pickle(pickle("(K\xffM\x01\x02J\xfe\xff\xff\xfft"s)),
      "(255, 513, -2)");
  EXPECT_EQ(
      text_of_pickle(pickle("\x8a\x08\0\0\0\0\0\0\0\x80"s)),
      "-9223372036854775808");
  EXPECT_EQ(text_of_pickle(pickle("G\xbf\xe0\0\0\0\0\0\0"s)), "-0.5");
  EXPECT_EQ(text_of_pickle(pickle("X\x03\0\0\0a\0b"s)), "'a\0b'"s);
  EXPECT_EQ(text_of_pickle(pickle(")K\x01\x85\x86")), "((), (1))");
}

TEST(Pickle, SharedValues) {
  EXPECT_EQ(
      text_of_pickle(pickle("(X\x02\0\0\0hiq\0h\0K\x05\x85q\x01h\x01t"s)),
      "('hi', 'hi', (5), (5))");
}

TEST(Pickle, TensorsAndLists) {
  const std::string tensor = name("build_tensor_from_id");
  EXPECT_EQ(
      text_of_pickle(pickle("(" + tensor + "q\0(K\x01tRh\0(K\0tRt"s), 2),
      "(tensor 1, tensor 0)");
  EXPECT_EQ(
      text_of_pickle(pickle(name("build_intlist") + "(](K\x01K\x02" + "etR")),
      "ints (1, 2)");
  EXPECT_EQ(
      text_of_pickle(pickle(name("build_boollist") + "(](etR")), "bools ()");
  EXPECT_EQ(
      text_of_pickle(pickle(
          name("restore_type_tag") + "}(uX\x0e\0\0\0Dict[str, str]\x86R"s)),
      "map");
}

TEST(Pickle, NothingElseHasAName) {
  const std::string refused = "a pickle names a class or a function";
  for (const std::string each :
       {"c__main__\nTensorID\n",
        "c__torch__\nHostile\n",
        "cbuiltins\ncomplex\n",
        "ccollections\nOrderedDict\n",
        "ctorch\ndevice\n",
        "ctorch._utils\n_rebuild_tensor_v2\n",
        "ctorch.distributed.rpc\nrref\n",
        "ctorch.jit._pickle\nbuild_any\n"}) {
    EXPECT_EQ(reason_of(pickle(each + "(K\x01tR")), refused) << each;
  }
  // Names are not values, and are used at once or not at all.
  const std::string tensor = name("build_tensor_from_id");
  EXPECT_NE(reason_of(pickle(tensor), 1).find("middle"), std::string::npos);
  EXPECT_NE(
      reason_of(pickle(tensor + "(K\0t"s), 1).find("does not use"),
      std::string::npos);
  EXPECT_NE(
      reason_of(pickle(tensor + "\x85" + "R"), 1).find("where a value belongs"),
      std::string::npos);
}

TEST(Pickle, OnlyTheTypeOfAnEmptyMap) {
  const std::string tag = name("restore_type_tag");
  EXPECT_NE(
      reason_of(pickle(tag + "}(uX\x0e\0\0\0Dict[str, int]\x86R"s))
          .find("misuses restore_type_tag"),
      std::string::npos);
  EXPECT_NE(
      reason_of(pickle(tag + "NX\x0e\0\0\0Dict[str, str]\x86R"s))
          .find("misuses"),
      std::string::npos);
  EXPECT_NE(
      reason_of(pickle("}(K\x01K\x02u")).find("map with entries"),
      std::string::npos);
}

TEST(Pickle, TensorsThatDoNotExist) {
  const std::string tensor = name("build_tensor_from_id");
  EXPECT_EQ(
      reason_of(pickle(tensor + "(K\x02tR"), 2),
      "a pickle refers to tensor 2, but there are 2");
  EXPECT_NE(
      reason_of(pickle(tensor + "(J\xff\xff\xff\xfftR"), 2).find("tensor -1"),
      std::string::npos);
  EXPECT_NE(
      reason_of(pickle(tensor + "(NtR"), 2).find("misuses"), std::string::npos);
}

TEST(Pickle, DeepNesting) {
  EXPECT_EQ(
      reason_of(pickle("N" + std::string(64, '\x85'))).substr(0, 5), "read:");
  EXPECT_EQ(
      reason_of(pickle("N" + std::string(65, '\x85'))),
      "values are nested more than 64 deep");
}

// Keeps no tuples.
class FlatSink final : public test::TextSink {
  void tuple(std::size_t count) override {
    drop(count);
    none();
  }
};

// Every tuple has the one before it twice.
TEST(Pickle, SharingThatUnfoldsToALot) {
  std::string doubling = "X\x04\0\0\0abcd"s;
  for (char n = 0; n < 40; ++n) {
    doubling += "q"s + n + "h" + n + "\x86";
  }
  FlatSink sink;
  EXPECT_ERROR(
      DamagedError,
      read_pickle(pickle(doubling), 0, sink),
      "unfolds to more than");
}

// A number takes more than the byte it is written in.
TEST(Pickle, SharedNumbersCountAsTheBytesTheyTake) {
  const auto unfolded = [](char doublings) {
    std::string bytes = "K\x01"s;
    for (char n = 0; n < doublings; ++n) {
      bytes += "q"s + n + "h" + n + "\x86";
    }
    FlatSink sink;
    read_pickle(pickle(bytes), 0, sink);
  };
  unfolded(22);  // 2^23 values of 16 bytes
  EXPECT_ERROR(DamagedError, unfolded(24), "unfolds to more than");
}

TEST(Pickle, WhatIsNone) {
  for (const std::string& each :
       {""s,
        "\x80"s,
        "\x80\x02"s,
        "\x80\x03N."s,
        pickle(""),
        pickle("NN"),
        pickle("N") + "x",
        pickle("(N"),
        pickle("t"),
        pickle("\x86"),
        pickle("N(\x85"),
        pickle("R"),
        pickle("NR"),
        pickle("e"),
        pickle("]"),
        pickle("](N"),
        pickle("N(Ne"),
        pickle("](Ne"),
        pickle("u"),
        pickle("h\0"s),
        pickle("q\0"s),
        pickle("Nq\1"),
        pickle("]q\0"s),
        pickle("X\xff\xff\xff\xff"),
        pickle("\x8a\x07\0\0\0\0\0\0\0"s),
        pickle("G\0\0"s),
        pickle("ctorch"),
        pickle("i"),
        pickle("\x81")}) {
    EXPECT_NE(reason_of(each).substr(0, 5), "read:") << each;
  }
}

}  // namespace
}  // namespace gradwire
