#include "gradwire/comm/group.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <map>

#include "gradwire/comm/group_impl.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::Body;
using test::run_threads;

struct Ranks {
  const char* transport;
  int world;
};
void PrintTo(const Ranks& ranks, std::ostream* out) {
  *out << ranks.world << " ranks on " << ranks.transport;
}

class Groups : public testing::TestWithParam<Ranks> {
 protected:
  static void run(const Body& body) {
    run_threads(GetParam().world, body, {.transport = GetParam().transport});
  }
};
INSTANTIATE_TEST_SUITE_P(
    Sockets,
    Groups,
    testing::Values(
        Ranks{"gloo", 1},
        Ranks{"gloo", 2},
        Ranks{"gloo", 3},
        Ranks{"gloo", 4}));
INSTANTIATE_TEST_SUITE_P(
    Local,
    Groups,
    testing::Values(
        Ranks{"local", 1},
        Ranks{"local", 2},
        Ranks{"local", 3},
        Ranks{"local", 4},
        Ranks{"local", 5},
        Ranks{"local", 6},
        Ranks{"local", 7},
        Ranks{"local", 8},
        Ranks{"local", 64}));

class AnyGroup : public testing::TestWithParam<const char*> {
 protected:
  static void run(int world, const Body& body) {
    run_threads(world, body, {.transport = GetParam()});
  }
};
INSTANTIATE_TEST_SUITE_P(Transport, AnyGroup, testing::Values("gloo", "local"));

// The thread that completes a collective is one that others need.
TEST_P(AnyGroup, WaitingInACallbackIsAnError) {
  std::promise<void> attached;
  run(2, [&](const Group& group) {
    if (group.rank() == 1) {
      attached.get_future().wait();
      group.all_reduce(torch::ones({3})).wait();
      return;
    }
    const Future never(Future::make_raw());
    const Future result =
        group.all_reduce(torch::ones({3})).then([&](const at::Tensor& sum) {
          never.wait();
          return sum;
        });
    attached.set_value();
    EXPECT_ERROR(Error, result.wait(), "[gradwire.comm] a callback", "then()");
  });
}

TEST_P(Groups, AllReduceOps) {
  run([](const Group& group) {
    const int n = group.size();
    const auto mine = torch::full({5}, group.rank() + 1.0, torch::kDouble);
    const auto reduce = [&](ReduceOp op) {
      return group.all_reduce(mine.clone(), op).wait()[0].item<double>();
    };
    EXPECT_EQ(reduce(ReduceOp::kSum), n * (n + 1) / 2.0);
    EXPECT_EQ(reduce(ReduceOp::kMin), 1.0);
    EXPECT_EQ(reduce(ReduceOp::kMax), n);
    EXPECT_DOUBLE_EQ(reduce(ReduceOp::kProduct), std::tgamma(n + 1));
  });
}

TEST_P(Groups, BroadcastFromEveryRoot) {
  run([](const Group& group) {
    for (int root = 0; root < group.size(); ++root) {
      auto tensor = torch::full({7}, group.rank());
      group.broadcast(tensor, root).wait();
      EXPECT_TRUE(tensor.eq(root).all().item<bool>());
    }
  });
}

TEST_P(Groups, AllGatherInRankOrder) {
  run([](const Group& group) {
    auto output = torch::empty({group.size(), 3}, torch::kLong);
    const auto input = torch::full({3}, group.rank(), torch::kLong);
    EXPECT_TRUE(group.all_gather(output, input).wait().is_same(output));
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_TRUE(output[rank].eq(rank).all().item<bool>());
    }
  });
}

TEST_P(Groups, AllToAllEvenAndUneven) {
  run([](const Group& group) {
    const int n = group.size();
    const int me = group.rank();
    const auto input = torch::arange(n) + 100 * me;
    auto output = torch::empty({n}, torch::kLong);
    group.all_to_all(output, input).wait();
    for (int from = 0; from < n; ++from) {
      EXPECT_EQ(output[from].item<int>(), 100 * from + me);
    }
    // Rank r sends r+1 rows to rank 0 and nothing to the others.
    std::vector<std::int64_t> sent(n, 0);
    std::vector<std::int64_t> received(n, 0);
    sent[0] = me + 1;
    for (int from = 0; me == 0 && from < n; ++from) {
      received[from] = from + 1;
    }
    const auto rows = torch::full({me + 1, 2}, me);
    auto gathered =
        torch::full({me == 0 ? n * (n + 1) / 2 : 0, 2}, -1, torch::kLong);
    group.all_to_all(gathered, rows, received, sent).wait();
    if (me == 0) {
      EXPECT_EQ(gathered[0][0].item<int>(), 0);
      EXPECT_EQ(gathered[-1][1].item<int>(), n - 1);
    }
  });
}

TEST_P(Groups, BarrierAndNames) {
  run([](const Group& group) {
    EXPECT_FALSE(group.barrier().wait().defined());
    EXPECT_EQ(group.name(), "world");
    EXPECT_EQ(group.timeout(), std::chrono::seconds(30));
  });
}

TEST_P(Groups, SaysWhereTensorsAreAndWhatAnAllReduceWouldSend) {
  run([](const Group& group) {
    EXPECT_TRUE(group.device().is_cpu());
    const Bytes before = group.bytes_sent();
    group.all_reduce(torch::ones({1001})).wait();
    EXPECT_EQ(
        (group.bytes_sent() - before).payload, group.all_reduce_bytes(1001, 4));
  });
}

TEST_P(Groups, EveryCollectiveCountsItsBytes) {
  run([](const Group& group) {
    const int n = group.size();
    Bytes before = group.bytes_sent();
    const auto sent = [&] {
      const Bytes now = group.bytes_sent();
      const Bytes difference = now - std::exchange(before, now);
      EXPECT_EQ(difference.metadata, 0);
      return difference.payload;
    };
    group.all_reduce(torch::ones({n * 8})).wait();
    EXPECT_EQ(sent(), 2 * (n - 1) * 8 * 4);
    group.broadcast(torch::ones({5}), 0).wait();
    const auto from_root = sent();
    group.all_gather(torch::empty({n * 3}), torch::ones({3})).wait();
    EXPECT_EQ(sent(), (n - 1) * 3 * 4);
    group.all_to_all(torch::empty({n, 2}), torch::ones({n, 2})).wait();
    EXPECT_EQ(sent(), (n - 1) * 2 * 4);
    group.barrier().wait();
    EXPECT_EQ(sent(), 0);
    const auto from_all = torch::tensor({from_root});
    group.all_reduce(from_all).wait();
    EXPECT_EQ(from_all.item<std::int64_t>(), (n - 1) * 20);
  });
}

TEST_P(Groups, MessagesSayHowMuchOfThemIsMetadata) {
  run([](const Group& group) {
    const int n = group.size();
    const auto input = torch::full({n * 3}, group.rank(), torch::kByte);
    const auto output = torch::empty({n * 3}, torch::kByte);
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(n), 3);
    const Bytes before = group.bytes_sent();
    all_to_all_messages(group, output, input, counts, counts, n - 1).wait();
    EXPECT_EQ(group.bytes_sent() - before, (Bytes{(n - 1) * 2, n - 1}));
    for (int from = 0; from < n; ++from) {
      EXPECT_EQ(output[3 * from].item<int>(), from);
    }
  });
}

TEST_P(AnyGroup, SparseAllReduceSumsAndCountsIndicesAsMetadata) {
  run(2, [](const Group& group) {
    // Rank 0 has rows 1 and 1 (to be coalesced), rank 1 rows 1 and 3.
    const auto rows = torch::tensor({1, group.rank() == 0 ? 1 : 3});
    const auto sparse = torch::sparse_coo_tensor(
        rows.unsqueeze(0), torch::ones({2, 2}), {4, 2});
    const Bytes before = group.bytes_sent();
    const auto sum = group.all_reduce(sparse).wait().to_dense();
    EXPECT_EQ(sum[1][0].item<float>(), 3);
    EXPECT_EQ(sum[3][1].item<float>(), 1);
    EXPECT_EQ(sum.sum().item<float>(), 8);
    const std::int64_t nnz = group.rank() == 0 ? 1 : 2;
    // Over sockets ranks first tell each other the sizes.
    const std::int64_t header = std::string(GetParam()) == "gloo" ? 72 : 0;
    EXPECT_EQ(
        group.bytes_sent() - before, (Bytes{nnz * 2 * 4, header + nnz * 8}));
  });
}

TEST_P(AnyGroup, SubgroupsAreNumberedByTheList) {
  run(4, [](const Group& group) {
    const Group odd = group.subgroup({3, 1});
    EXPECT_EQ(static_cast<bool>(odd), group.rank() % 2 == 1);
    if (!odd) {
      EXPECT_ERROR(Error, odd.rank(), "not a member");
      return;
    }
    EXPECT_EQ(odd.rank(), group.rank() == 3 ? 0 : 1);
    auto tensor = torch::full({1}, group.rank());
    EXPECT_EQ(odd.all_reduce(tensor).wait().item<float>(), 4);
    EXPECT_EQ(odd.name(), "world/sub0");
  });
}

TEST_P(AnyGroup, SubgroupTimeoutIsItsOwn) {
  run(2, [](const Group& group) {
    const Group quick = group.subgroup({0, 1}, std::chrono::seconds(1));
    EXPECT_EQ(quick.timeout(), std::chrono::seconds(1));
    if (group.rank() == 0) {
      EXPECT_ERROR(
          CommError,
          quick.all_reduce(torch::ones({4})).wait(),
          "all_reduce on group 'world/sub0' failed on rank 0 of 2");
    }
    group.barrier().wait();
  });
}

TEST_P(AnyGroup, SubgroupListsMustAgreeAndMakeSense) {
  run(2, [](const Group& group) {
    EXPECT_ERROR(
        Error,
        group.subgroup({group.rank()}),
        "ranks do not agree on subgroup: ranks is '0' on rank 0 but '1' on "
        "rank 1");
    EXPECT_ERROR(Error, group.subgroup({}), "expected at least one");
    EXPECT_ERROR(Error, group.subgroup({0, 0}), "none twice");
    EXPECT_ERROR(Error, group.subgroup({0, 2}), "expected 0 to 1");
    EXPECT_EQ(group.subgroup({1, 0}).size(), 2);
  });
}

TEST_P(AnyGroup, DuplicatesDoNotPairUpWithTheOriginal) {
  run(2, [](const Group& group) {
    const Group other = group.duplicate("lane");
    auto a = torch::ones({1000});
    auto b = torch::full({1000}, 10.0);
    // Submitted in opposite orders on the two ranks.
    Future first, second;
    if (group.rank() == 0) {
      first = group.all_reduce(a);
      second = other.all_reduce(b);
    } else {
      second = other.all_reduce(b);
      first = group.all_reduce(a);
    }
    EXPECT_EQ(first.wait()[0].item<float>(), 2);
    EXPECT_EQ(second.wait()[0].item<float>(), 20);
  });
}

// Whoever is done with a group at once leaves the others theirs.
TEST_P(AnyGroup, DroppedAsSoonAsItIsMade) {
  run(4, [](const Group& group) {
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(group.duplicate("short").size(), 4);
    }
  });
}

TEST_P(AnyGroup, BadTensorsAreRefusedBeforeAnythingIsSent) {
  run(2, [](const Group& group) {
    const Bytes before = group.bytes_sent();
    EXPECT_ERROR(Error, group.all_reduce({}), "all_reduce got an undefined");
    EXPECT_ERROR(
        Error,
        group.all_reduce(torch::ones({4, 4}).slice(1, 0, 2)),
        "holes or overlaps");
    EXPECT_ERROR(
        Error, group.broadcast(torch::ones({1}), 2), "root 2, expected 0 to 1");
    EXPECT_ERROR(
        Error,
        group.all_gather(torch::empty({3}), torch::ones({2})),
        "output of 3 Float, expected 4 Float");
    EXPECT_ERROR(
        Error,
        group.all_gather(torch::empty({4}), torch::ones({2, 2}).t()[0]),
        "expected a contiguous one");
    EXPECT_ERROR(
        Error,
        group.all_to_all(torch::empty({3}), torch::ones({3})),
        "divisible by 2, got 3");
    EXPECT_ERROR(
        Error,
        group.all_to_all(torch::empty({3}), torch::ones({3}), {1, 1}, {1, 2}),
        "output counts [1, 1] for 3 rows");
    EXPECT_EQ(group.bytes_sent(), before);
    // The group is as good as new.
    EXPECT_EQ(group.all_reduce(torch::ones({1})).wait().item<float>(), 2);
  });
}

TEST_P(AnyGroup, ChannelsLastIsDense) {
  run(2, [](const Group& group) {
    auto tensor = test::random_tensor({2, 3, 4, 5}, group.rank())
                      .contiguous(at::MemoryFormat::ChannelsLast);
    const auto expected = test::random_tensor({2, 3, 4, 5}, 0) +
                          test::random_tensor({2, 3, 4, 5}, 1);
    group.all_reduce(tensor).wait();
    EXPECT_TRUE(torch::allclose(tensor, expected));
  });
}

// The threads of this process, by number, and whether SIGPIPE may end them.
std::map<std::string, bool> threads_that_take_sigpipe() {
  std::map<std::string, bool> threads;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(entry.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigBlk:")) {
        const auto blocked = std::stoull(line.substr(7), nullptr, 16);
        threads[entry.path().filename()] = (blocked >> (SIGPIPE - 1) & 1) == 0;
      }
    }
  }
  return threads;
}

// Gloo writes to sockets of peers that may be gone, and so does the store: that
// must be an error. It is ours alone: the caller's thread is as it was.
TEST(Group, NoSigpipeInItsThreads) {
  run_threads(1, [](const Group& group) {
    const auto before = threads_that_take_sigpipe();
    const Group other = group.duplicate("sigpipe");
    int started = 0;
    for (const auto& [thread, takes] : threads_that_take_sigpipe()) {
      if (!before.contains(thread)) {
        EXPECT_FALSE(takes) << "thread " << thread;
        ++started;
      } else {
        EXPECT_EQ(takes, before.at(thread)) << "thread " << thread;
      }
    }
    EXPECT_GE(started, 2);
  });
}

}  // namespace
}  // namespace gradwire
