#include "gradwire/base/bytes.h"

#include <gtest/gtest.h>

#include <thread>

namespace gradwire {
namespace {

TEST(Bytes, AMeterAddsUp) {
  ByteMeter meter;
  meter.add({.payload = 10, .metadata = 1});
  meter.add({.payload = 5});
  EXPECT_EQ(meter.read(), (Bytes{15, 1}));
  EXPECT_EQ(meter.read().total(), 16);
}

TEST(Bytes, ALedgerGetsWhatItsThreadAddsWhileItsScopeLives) {
  ByteMeter meter;
  const auto outer = std::make_shared<ByteMeter>();
  const auto inner = std::make_shared<ByteMeter>();
  {
    const ByteScope scope(outer);
    meter.add({.payload = 1});
    {
      const ByteScope nested(inner);
      EXPECT_EQ(ByteScope::current(), inner);
      meter.add({.payload = 2});
    }
    std::thread([&] { meter.add({.payload = 4}); }).join();
    outer->add({.payload = 8});
  }
  meter.add({.payload = 16});
  EXPECT_EQ(meter.read().payload, 1 + 2 + 4 + 16);
  EXPECT_EQ(outer->read().payload, 1 + 8);
  EXPECT_EQ(inner->read().payload, 2);
  EXPECT_EQ(ByteScope::current(), nullptr);
}

}  // namespace
}  // namespace gradwire
