#include "gradwire/base/text.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

TEST(Text, NearestFindsWhatWasMeant) {
  EXPECT_EQ(nearest("alreduce", {"noop", "allreduce"}), "allreduce");
  EXPECT_EQ(nearest("int7", {"fp16", "int8"}), "int8");
}

TEST(Text, NearestStaysSilentWhenNothingIsNear) {
  EXPECT_EQ(nearest("xyz", {"allreduce", "powersgd"}), "");
  EXPECT_EQ(did_you_mean("xyz", {"allreduce"}), "");
}

TEST(Text, HumanBytesUsesDecimalUnits) {
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1500), "1.5 kB");
  EXPECT_EQ(human_bytes(25.2e6), "25.2 MB");
}

TEST(Text, FingerprintKnownValues) {
  // The published test vectors of 64-bit FNV-1a.
  EXPECT_EQ(fingerprint(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(fingerprint("a"), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(fingerprint("foobar"), 0x85944171f73967e8ULL);
}

}  // namespace
}  // namespace gradwire
