// Transport "local": what is special about it. What all transports do is in
// group_test.cpp.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <mutex>

#include "gradwire/ddp/ddp.h"
#include "gradwire/hook/registry.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using test::run_threads;

// The groups of all ranks, for one thread to play them all.
std::vector<Group> local_groups(
    int world, milliseconds timeout = std::chrono::seconds(30)) {
  std::vector<Group> groups(static_cast<std::size_t>(world));
  std::mutex mutex;
  run_threads(
      world,
      [&](const Group& group) {
        const std::lock_guard lock(mutex);
        groups[static_cast<std::size_t>(group.rank())] = group;
      },
      {.timeout = timeout, .transport = "local"});
  return groups;
}

TEST(Local, NobodyWaitsButForTheResult) {
  const auto groups = local_groups(3);
  std::vector<Future> sums;
  for (const auto& group : groups) {
    for (const auto& sum : sums) {
      EXPECT_FALSE(sum.done());
    }
    sums.push_back(group.all_reduce(torch::full({2}, group.rank() + 1.0)));
  }
  for (const auto& sum : sums) {
    ASSERT_TRUE(sum.done());
    EXPECT_EQ(sum.wait()[1].item<double>(), 6);
  }
}

TEST(Local, CollectivesPairUpByTheirOrder) {
  const auto groups = local_groups(2);
  std::vector<Future> early;
  for (int i = 0; i < 3; ++i) {
    early.push_back(groups[0].all_reduce(torch::full({1}, 10 * i)));
  }
  for (int i = 0; i < 3; ++i) {
    const auto sum = groups[1].all_reduce(torch::full({1}, i)).wait();
    EXPECT_EQ(sum.item<int>(), 11 * i);
    EXPECT_EQ(early[static_cast<std::size_t>(i)].done(), true);
  }
}

// (1e8 + 1) - 1e8 is 0 in float, (1e8 - 1e8) + 1 is 1.
TEST(Local, SumsAreTakenInRankOrderWhoeverIsTheLast) {
  const auto groups = local_groups(3);
  const std::vector<float> values{1e8f, 1.0f, -1e8f};
  for (const auto& order :
       {std::vector<std::size_t>{0, 1, 2}, {2, 0, 1}, {1, 2, 0}}) {
    std::vector<Future> sums;
    for (const auto rank : order) {
      sums.push_back(groups[rank].all_reduce(torch::full({1}, values[rank])));
    }
    for (const auto& sum : sums) {
      EXPECT_EQ(sum.wait().item<float>(), 0.0f);
    }
  }
}

// The store of the threads is a more patient one: five minutes.
TEST(Local, ARankThatDoesNotComeEndsMakingTheGroupInItsTimeout) {
  const auto began = std::chrono::steady_clock::now();
  run_threads(
      2,
      [](const Group& group) {
        if (group.rank() == 1) {
          EXPECT_ERROR(
              CommError, group.duplicate("alone"), "rank 0 does not answer");
        }
      },
      {.timeout = milliseconds(300), .transport = "local"});
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::minutes(1));
}

// Nobody else's deadline waits for a callback.
TEST(Local, ACallbackOfAFailureMayTakeLong) {
  const auto slow = local_groups(2, milliseconds(100));
  const auto quick = local_groups(2, milliseconds(200));
  const auto first = slow[0].all_reduce(torch::ones({1}));
  const auto second = quick[0].all_reduce(torch::ones({1}));
  std::promise<void> over;
  std::promise<bool> found;
  first.on_done([&, failed = over.get_future().share()](const Future&) {
    found.set_value(
        failed.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  });
  EXPECT_THROW(second.wait(), CommError);
  over.set_value();
  EXPECT_TRUE(found.get_future().get());
}

TEST(Local, DifferentCollectivesAreAnErrorOnEveryRankAndNoMore) {
  const auto groups = local_groups(3);
  const auto four = groups[0].all_reduce(torch::ones({4}));
  const auto root = groups[1].broadcast(torch::ones({4}), 1);
  const auto other = groups[2].all_reduce(torch::ones({4}));
  for (const auto& future : {four, root, other}) {
    EXPECT_ERROR(
        Error,
        future.wait(),
        "[gradwire.comm] ranks do not agree on a collective of group 'world': "
        "all_reduce (sum) of 4 Float on rank 0 but broadcast of 4 Float from "
        "rank 1 on rank 1");
  }
  std::vector<Future> sums;
  for (const auto& group : groups) {
    sums.push_back(group.all_reduce(torch::ones({1})));
  }
  EXPECT_EQ(sums[0].wait().item<float>(), 3);
}

TEST(Local, SizesTypesAndOperationsAreCompared) {
  const auto groups = local_groups(2);
  const auto both = [&](const Future& first, const Future& second) {
    for (const auto& future : {first, second}) {
      EXPECT_ERROR(Error, future.wait(), "on rank 0 but all_reduce");
    }
  };
  const auto ones = torch::ones({4});
  both(
      groups[0].all_reduce(ones.clone()),
      groups[1].all_reduce(torch::ones({5})));
  both(
      groups[0].all_reduce(ones.clone()),
      groups[1].all_reduce(torch::ones({4}, torch::kDouble)));
  both(
      groups[0].all_reduce(ones.clone()),
      groups[1].all_reduce(ones.clone(), ReduceOp::kMax));
  both(
      groups[0].all_reduce(ones.clone()),
      groups[1].all_reduce(ones.clone().to_sparse()));
}

TEST(Local, CountsOfAnAllToAllAreCompared) {
  const auto groups = local_groups(2);
  const auto make = [] { return torch::ones({3}, torch::kByte); };
  const auto first = groups[0].all_to_all(make(), make(), {1, 2}, {1, 2});
  const auto second = groups[1].all_to_all(make(), make(), {1, 2}, {2, 1});
  EXPECT_ERROR(
      Error, first.wait(), "rank 0 sends 2 bytes to rank 1, which expects 1");
  EXPECT_ERROR(Error, second.wait(), "which expects 1");
}

TEST(Local, RanksThatDoNotComeAreNamed) {
  const auto groups = local_groups(4, std::chrono::seconds(1));
  const auto sum = groups[1].all_reduce(torch::ones({4}));
  const auto barrier = groups[3].barrier();
  EXPECT_ERROR(
      CommError,
      sum.wait(),
      "all_reduce on group 'world' failed on rank 1 of 4: ranks 0, 2 did not "
      "come within 1 s");
  EXPECT_ERROR(CommError, barrier.wait(), "barrier on group", "ranks 0, 2");
  // The group is lost.
  EXPECT_ERROR(
      CommError, groups[0].barrier().wait(), "failed on rank 0 of 4: ranks 0");
}

TEST(Local, ARankThatLeavesFailsTheOthersAtOnce) {
  auto groups = local_groups(3);
  const auto waiting = groups[0].barrier();
  groups[2] = {};
  ASSERT_TRUE(waiting.done());
  EXPECT_ERROR(
      CommError,
      waiting.wait(),
      "barrier on group 'world' failed on rank 0 of 3: rank 2 has left");
  const auto later = groups[1].all_reduce(torch::ones({1}));
  ASSERT_TRUE(later.done());
  EXPECT_ERROR(CommError, later.wait(), "rank 2 has left the group");
}

TEST(Local, ADuplicateLivesOnWithoutTheOriginal) {
  run_threads(
      2,
      [](const Group& group) {
        const Group other = group.duplicate("lane").subgroup({1, 0});
        EXPECT_EQ(other.all_reduce(torch::ones({1})).wait().item<float>(), 2);
      },
      {.transport = "local"});
}

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return second->forward(torch::relu(first->forward(x)));
  }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(24, 40))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(40, 8))};
};
TORCH_MODULE(Net);

class LocalDdp : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Hooks, LocalDdp, testing::ValuesIn([] {
                           std::vector<std::string> names{"none"};
                           for (const auto& hook : hooks()) {
                             names.push_back(
                                 hook.trial.empty()
                                     ? hook.name
                                     : concat(hook.name, ":", hook.trial));
                           }
                           return names;
                         }()));

TEST_P(LocalDdp, TrainsWithEqualBitsOnAllRanks) {
  run_threads(
      4,
      [](const Group& group) {
        torch::manual_seed(7);
        auto net = DistributedDataParallel(
            Net(), group, {.hook = GetParam(), .bucket_cap_mb = 0.002});
        torch::optim::SGD sgd(net->parameters(), 0.1);
        for (int step = 0; step < 3; ++step) {
          sgd.zero_grad();
          const auto x =
              test::random_tensor({2, 24}, group.size() * step + group.rank());
          net->forward(x).square().mean().backward();
          sgd.step();
        }
        std::vector<at::Tensor> parts;
        for (const auto& parameter : net->parameters()) {
          const auto& value = GetParam() == "noop" ? parameter * 0 : parameter;
          parts.push_back(value.detach().flatten());
        }
        const auto mine = torch::cat(parts);
        const auto all = torch::empty({group.size(), mine.numel()});
        group.all_gather(all, mine).wait();
        for (int rank = 1; rank < group.size(); ++rank) {
          EXPECT_TRUE(all[rank].equal(all[0]));
        }
        EXPECT_TRUE(all.isfinite().all().item<bool>());
      },
      {.transport = "local"});
}

}  // namespace
}  // namespace gradwire
