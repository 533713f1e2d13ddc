#include "tests/support/ranks.h"

#include <gtest/gtest-spi.h>
#include <signal.h>
#include <torch/torch.h>

#include <atomic>

#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

void sum_ranks(const Group& group) {
  auto tensor = torch::full({3}, group.rank() + 1.0);
  group.all_reduce(tensor).wait();
  const int n = group.size();
  EXPECT_EQ(tensor[0].item<double>(), n * (n + 1) / 2.0);
}

void rank1_fails_while_others_wait(const Group& group) {
  if (group.rank() == 1) {
    throw std::runtime_error("out of luck");
  }
  auto tensor = torch::ones({3});
  EXPECT_ERROR(CommError, group.all_reduce(tensor).wait(), "rank 0 of 2");
}

TEST(Ranks, ThreadsTalk) {
  std::atomic<int> bodies = 0;
  run_threads(3, [&](const Group& group) {
    ++bodies;
    sum_ranks(group);
  });
  EXPECT_EQ(bodies, 3);
}

TEST(Ranks, AFailingThreadIsNamedAndTheOthersEnd) {
  EXPECT_NONFATAL_FAILURE(
      run_threads(2, rank1_fails_while_others_wait), "rank 1: out of luck");
}

TEST(RanksProcesses, ProcessesTalk) {
  run_processes(3, sum_ranks);
  run_processes(2, sum_ranks);
}

TEST(RanksProcesses, AFailingProcessIsNamedAndTheOthersEnd) {
  const auto run = [] { run_processes(2, rank1_fails_while_others_wait); };
  if (std::getenv("GRADWIRE_TEST_RANK")) {
    run();
  }
  static auto in_parent = run;
  EXPECT_NONFATAL_FAILURE(in_parent(), "rank 1: out of luck");
}

TEST(RanksProcesses, AKilledPeerIsACommErrorAtOnce) {
  run_processes(
      2,
      [](const Group& group) {
        if (group.rank() == 1) {
          raise(SIGKILL);
        }
        auto tensor = torch::ones({3});
        EXPECT_ERROR(
            CommError,
            group.all_reduce(tensor).wait(),
            "all_reduce on group 'world' failed on rank 0 of 2",
            "a peer is lost or late");
      },
      {.may_die = {1}});
}

}  // namespace
}  // namespace gradwire::test
