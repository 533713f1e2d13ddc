#include "gradwire/rpc/rendezvous.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

#include "gradwire/rpc/leaving.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

using rpc::Rendezvous;
using std::chrono::milliseconds;
using Clock = Rendezvous::Clock;
using Names = std::vector<std::string>;

constexpr int kWorld = 64;

// Counts what it is asked.
class CountingStore final : public c10d::HashStore {
 public:
  bool check(const Names& keys) override {
    operations += static_cast<int>(keys.size());
    return HashStore::check(keys);
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    ++operations;
    return HashStore::get(key);
  }

  std::atomic<int> operations = 0;
};

TEST(RpcRendezvous, WaitingAsksForOneKeyAndLessAndLessOften) {
  const auto store = c10::make_intrusive<CountingStore>();
  Rendezvous rendezvous(store, 0, kWorld);
  rendezvous.leave("topic", "text");
  const auto late = rendezvous.wait("topic", Clock::now() + milliseconds(300));
  EXPECT_EQ(late.size(), kWorld - 1u);
  // In the end it asks who is missing, once.
  EXPECT_LT(store->operations - kWorld, 20);
}

TEST(RpcRendezvous, TheLastOneReadsForAll) {
  const auto store = c10::make_intrusive<CountingStore>();
  for (int rank = 0; rank < kWorld; ++rank) {
    Rendezvous rendezvous(store, rank, kWorld);
    EXPECT_EQ(
        rendezvous.leave("topic", concat("text ", rank)), rank == kWorld - 1);
  }
  store->operations = 0;
  Rendezvous rendezvous(store, 5, kWorld);
  EXPECT_TRUE(rendezvous.wait("topic", Clock::now()).empty());
  const auto texts = rendezvous.read("topic");
  ASSERT_EQ(texts.size(), std::size_t{kWorld});
  EXPECT_EQ(texts[63], "text 63");
  EXPECT_EQ(store->operations, 2);
}

TEST(RpcLeaving, APauseEndsWhenItIsWoken) {
  rpc::Leaving leaving;
  leaving.wake();
  leaving.pause(std::chrono::hours(1));
  std::thread other([&] { leaving.wake(); });
  leaving.pause(std::chrono::hours(1));
  other.join();
}

TEST(RpcLeaving, APauseEndsWhenAWorkerIsLost) {
  rpc::Leaving leaving;
  leaving.lose(3, "worker 3 is lost");
  EXPECT_ERROR(
      CommError, leaving.pause(std::chrono::hours(1)), "worker 3 is lost");
  leaving.find(3);
  leaving.pause(milliseconds(1));
}

}  // namespace
}  // namespace gradwire::test
