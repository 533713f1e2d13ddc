#include "gradwire/optim/model_averager.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/optim/replicas.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"

namespace gradwire {
namespace {

using test::average_of;
using test::float_tensors;
using test::learn;
using test::mixed_tensors;
using test::run_threads;
using test::without_sockets;

std::vector<NamedTensorList> mixed_replicas(int world) {
  std::vector<NamedTensorList> replicas;
  for (int rank = 0; rank < world; ++rank) {
    replicas.push_back(mixed_tensors(rank));
  }
  return replicas;
}

void average_blocks(std::vector<NamedTensorList>& replicas, std::size_t size) {
  for (std::size_t first = 0; first < replicas.size(); first += size) {
    for (std::size_t i = 0; i < replicas[first].size(); ++i) {
      const auto average = average_of(replicas, i, first, size);
      for (std::size_t rank = first; rank < first + size; ++rank) {
        replicas[rank][i].tensor.copy_(average);
      }
    }
  }
}

// Every type, none of it with a gradient.
TEST(ModelAverager, PeriodicIsTheAverageToTheBit) {
  for (const int world : {2, 3}) {
    run_threads(
        world,
        [&](const Group& group) {
          const auto own = mixed_tensors(group.rank());
          PeriodicModelAverager averager(
              group, own, {.period = 3, .warmup = 2});
          auto replicas = mixed_replicas(world);
          for (int step = 0; step < 10; ++step) {
            learn(own, group.rank(), step);
            for (int rank = 0; rank < world; ++rank) {
              learn(replicas[static_cast<std::size_t>(rank)], rank, step);
            }
            EXPECT_EQ(averager.step(), step);
            averager.average_parameters();
            if (step == 2 || step == 5 || step == 8) {
              average_blocks(replicas, static_cast<std::size_t>(world));
              EXPECT_TRUE(test::equal_everywhere(group, own));
            }
            test::expect_same(
                own,
                replicas[static_cast<std::size_t>(group.rank())],
                concat("step ", step));
          }
          EXPECT_EQ(averager.stats().steps, 10);
          EXPECT_EQ(averager.stats().averages, 3);
        },
        without_sockets());
  }
}

// Of several periods that are due the longest counts.
TEST(ModelAverager, HierarchicalAveragesBlocks) {
  run_threads(
      4,
      [](const Group& group) {
        const auto own = mixed_tensors(group.rank());
        HierarchicalModelAverager averager(
            group, own, {{2, 2}, {6, 4}}, {.warmup = 3});
        auto replicas = mixed_replicas(4);
        for (int step = 0; step < 13; ++step) {
          learn(own, group.rank(), step);
          for (int rank = 0; rank < 4; ++rank) {
            learn(replicas[static_cast<std::size_t>(rank)], rank, step);
          }
          averager.average_parameters();
          if (step >= 3 && step % 2 == 0) {
            average_blocks(replicas, step % 6 == 0 ? 4 : 2);
          }
          test::expect_same(
              own,
              replicas[static_cast<std::size_t>(group.rank())],
              concat("step ", step));
        }
        EXPECT_EQ(averager.stats().averages, 5);
      },
      without_sockets());
}

TEST(ModelAverager, IntegersAreThoseOfTheFirstRank) {
  run_threads(
      4,
      [](const Group& group) {
        const int rank = group.rank();
        NamedTensorList own{
            {"count", torch::full({}, 5 + rank, torch::kLong)},
            {"mask", torch::full({3}, rank % 2 == 0, torch::kBool)},
            {"p", torch::full({4}, static_cast<float>(rank))},
            {"small", torch::full({5}, rank, torch::kChar)}};
        HierarchicalModelAverager averager(group, own, {{1, 2}, {4, 4}});
        averager.average_now();
        EXPECT_EQ(own[0].tensor.item<std::int64_t>(), 5);
        EXPECT_TRUE(own[1].tensor.all().item<bool>());
        EXPECT_TRUE(torch::equal(own[2].tensor, torch::full({4}, 1.5f)));
        EXPECT_TRUE(
            torch::equal(own[3].tensor, torch::zeros({5}, torch::kChar)));
        EXPECT_EQ(averager.step(), 0);
        // Of the first rank of a block.
        own[0].tensor.fill_(rank);
        averager.average_parameters();
        EXPECT_EQ(own[0].tensor.item<std::int64_t>(), 0);
        own[0].tensor.fill_(rank);
        averager.average_parameters();
        EXPECT_EQ(own[0].tensor.item<std::int64_t>(), rank / 2 * 2);
      },
      without_sockets());
}

// Parameters of a module come once, buffers on request.
TEST(ModelAverager, TakesTensorsOfAModule) {
  torch::nn::BatchNorm1d norm(3);
  EXPECT_EQ(tensors_of(norm).size(), 2u);
  const auto all = tensors_of(norm, /*buffers=*/true);
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(all.back().name, "num_batches_tracked");
  struct Tied : torch::nn::Module {
    Tied() {
      const auto weight = register_parameter("a", torch::ones({2}));
      register_parameter("b", weight);
    }
  };
  EXPECT_EQ(tensors_of(std::make_shared<Tied>()).size(), 1u);
}

// Ranks are equal after each average, and what one average loses the next ones
// bring.
TEST(ModelAverager, CompressedAveragesSendWhatChanged) {
  for (const std::string average : {"int4", "int8", "bf16"}) {
    run_threads(
        3,
        [&](const Group& group) {
          const std::vector<std::int64_t> sizes{3000, 600};
          auto own = float_tensors(group.rank(), sizes);
          std::vector<at::Tensor> exact;
          for (const auto& each : own) {
            exact.push_back(test::exact_mean(group, each.tensor));
          }
          PeriodicModelAverager averager(group, own, {.average = average});
          const auto error = [&] {
            double largest = 0;
            for (std::size_t i = 0; i < own.size(); ++i) {
              largest = std::max(
                  largest,
                  (own[i].tensor - exact[i]).abs().max().item<double>());
            }
            return largest;
          };
          averager.average_parameters();
          const double at_first = error();
          EXPECT_TRUE(test::equal_everywhere(group, own));
          EXPECT_GT(at_first, 0);
          EXPECT_LT(at_first, 1);
          for (int i = 0; i < 4; ++i) {
            averager.average_parameters();
            EXPECT_TRUE(test::equal_everywhere(group, own));
          }
          if (average != "bf16") {
            EXPECT_LT(error(), at_first / 50) << average;
          }
        },
        without_sockets());
  }
}

TEST(ModelAverager, CompressedBlocksStayEqual) {
  run_threads(
      4,
      [](const Group& group) {
        const auto own = float_tensors(group.rank(), {700});
        HierarchicalModelAverager averager(
            group, own, {{1, 2}, {3, 4}}, {.average = "int4"});
        const Group low = group.subgroup({0, 1});
        const Group high = group.subgroup({2, 3});
        const Group& block = low ? low : high;
        for (int step = 0; step < 7; ++step) {
          learn(own, group.rank(), step);
          averager.average_parameters();
          EXPECT_TRUE(test::equal_everywhere(block, own));
          EXPECT_EQ(test::equal_everywhere(group, own), step % 3 == 0);
        }
      },
      without_sockets());
}

TEST(ModelAverager, SendsOnlyWhenItIsTime) {
  const auto sent = [](const std::string& average) {
    std::int64_t bytes = 0;
    run_threads(2, [&](const Group& group) {
      const auto own = float_tensors(group.rank(), {40'000});
      PeriodicModelAverager averager(
          group, own, {.period = 4, .average = average});
      averager.average_parameters();
      const Bytes before = averager.stats().sent;
      for (int i = 0; i < 3; ++i) {
        averager.average_parameters();
      }
      EXPECT_EQ(averager.stats().sent, before);
      averager.average_parameters();
      if (group.rank() == 1) {
        bytes = (averager.stats().sent - before).total();
      }
    });
    return bytes;
  };
  EXPECT_EQ(sent("allreduce"), 160'000);
  EXPECT_LT(sent("int8"), 41'000);
  EXPECT_LT(sent("int4"), 21'000);
}

// Goes on from a folder, and from what state() returned.
TEST(ModelAverager, GoesOnWithTheSameBits) {
  for (const std::string average : {"allreduce", "int4"}) {
    const test::TemporaryFolder folder;
    run_threads(
        4,
        [&](const Group& group) {
          const int rank = group.rank();
          const auto make = [&](const NamedTensorList& tensors) {
            return HierarchicalModelAverager(
                group,
                tensors,
                {{2, 2}, {4, 4}},
                {.warmup = 1, .average = average});
          };
          const auto own = float_tensors(rank, {500, 64});
          auto averager = make(own);
          const auto go_on = [&](auto& which, auto& tensors, int from, int to) {
            for (int step = from; step < to; ++step) {
              learn(tensors, rank, step);
              which.average_parameters();
            }
          };
          go_on(averager, own, 0, 6);
          averager.save(folder.path());
          const HookRecord record =
              decode_record(encode_record(averager.state()), "here");
          const auto first = float_tensors(rank + 9, {500, 64});
          auto from_folder = make(first);
          from_folder.load(folder.path());
          const auto second = float_tensors(rank + 9, {500, 64});
          auto from_memory = make(second);
          from_memory.set_state(record);
          EXPECT_EQ(from_folder.step(), 6);
          go_on(averager, own, 6, 11);
          go_on(from_folder, first, 6, 11);
          go_on(from_memory, second, 6, 11);
          test::expect_same(first, own, "from a folder");
          test::expect_same(second, own, "from memory");
          EXPECT_EQ(from_folder.stats().averages, averager.stats().averages);
        },
        without_sockets());
  }
}

TEST(ModelAverager, GoesOnInAnotherWorld) {
  const test::TemporaryFolder folder;
  at::Tensor of_first;
  run_threads(
      4,
      [&](const Group& group) {
        const auto own = float_tensors(group.rank(), {500});
        PeriodicModelAverager averager(
            group, own, {.period = 3, .average = "int4"});
        for (int step = 0; step < 5; ++step) {
          learn(own, group.rank(), step);
          averager.average_parameters();
        }
        averager.save(folder.path());
        if (group.rank() == 0) {
          of_first = own[0].tensor.clone();
        }
      },
      without_sockets());
  run_threads(
      3,
      [&](const Group& group) {
        const auto own = float_tensors(group.rank() + 7, {500});
        PeriodicModelAverager averager(
            group, own, {.period = 3, .average = "int4"});
        averager.load(folder.path());
        EXPECT_EQ(averager.step(), 5);
        EXPECT_TRUE(test::same_bits(own[0].tensor, of_first));
        learn(own, group.rank(), 5);
        averager.average_parameters();
        learn(own, group.rank(), 6);
        averager.average_parameters();
        EXPECT_EQ(averager.stats().averages, 3);
        EXPECT_TRUE(test::equal_everywhere(group, own));
      },
      without_sockets());
}

TEST(ModelAverager, RefusesStatesOfOthers) {
  const test::TemporaryFolder folder;
  run_threads(
      2,
      [&](const Group& group) {
        const auto own = float_tensors(group.rank(), {50});
        PeriodicModelAverager averager(group, own, {.average = "int8"});
        averager.save(folder.path());
        PeriodicModelAverager plain(group, own, {});
        EXPECT_ERROR(
            Error,
            plain.load(folder.path()),
            "averager.rank0",
            "is of hook 'PeriodicModelAverager(int8)', expected "
            "'PeriodicModelAverager(allreduce)'");
        const auto other = float_tensors(group.rank(), {51});
        PeriodicModelAverager larger(group, other, {.average = "int8"});
        EXPECT_ERROR(
            Error,
            larger.load(folder.path()),
            "parameter 'p0' has 50 elements there, expected 51");
        const NamedTensorList shaped{{"p0", torch::zeros({5, 10})}};
        PeriodicModelAverager square(group, shaped, {.average = "int8"});
        EXPECT_ERROR(
            Error,
            square.load(folder.path()),
            "the state has no 'local' of type Float and sizes [5, 10] for "
            "'p0'");
        HookRecord record = averager.state();
        record.state.residuals["hook0/fragment0/p0"] = torch::zeros({3});
        const auto before = own[0].tensor.clone();
        EXPECT_ERROR(
            Error,
            averager.set_state(record),
            "a residual of 3 elements for 'p0'");
        record = averager.state();
        record.state.numbers["step"] = -4;
        EXPECT_ERROR(
            Error,
            averager.set_state(record),
            "no number 'step' of at least 0");
        EXPECT_TRUE(test::same_bits(own[0].tensor, before));
      },
      without_sockets());
}

TEST(ModelAverager, BadArgumentsAreErrorsOnEveryRank) {
  run_threads(
      4,
      [](const Group& group) {
        const auto own = float_tensors(group.rank(), {5});
        const auto periodic = [&](const PeriodicModelAveragerOptions& options) {
          PeriodicModelAverager(group, own, options);
        };
        const auto hierarchical =
            [&](const HierarchicalModelAverager::Periods& periods) {
              HierarchicalModelAverager(group, own, periods);
            };
        EXPECT_ERROR(Error, periodic({.period = 0}), "period is 0");
        EXPECT_ERROR(Error, periodic({.warmup = -1}), "warmup is -1");
        EXPECT_ERROR(
            Error, periodic({.average = "int9"}), "unknown hook 'int9'");
        EXPECT_ERROR(
            Error,
            periodic({.average = "noop"}),
            "average is 'noop', expected a hook that averages over all ranks");
        EXPECT_ERROR(
            Error,
            periodic({.average = "post_local_sgd:start=3"}),
            "expected a hook that averages over all ranks");
        EXPECT_ERROR(
            Error,
            periodic({.period = group.rank() == 3 ? 2 : 1}),
            "ranks do not agree on PeriodicModelAverager",
            "'2 within 4 ranks' on rank 3");
        EXPECT_ERROR(Error, hierarchical({}), "there are no periods");
        EXPECT_ERROR(Error, hierarchical({{0, 4}}), "period is 0");
        EXPECT_ERROR(
            Error,
            hierarchical({{2, 2}}),
            "longest period is within 2 ranks, expected all 4");
        EXPECT_ERROR(
            Error,
            hierarchical({{2, 3}, {4, 4}}),
            "period 4 is within 4 ranks, expected a larger multiple of 3");
        EXPECT_ERROR(
            Error,
            hierarchical({{2, 4}, {4, 2}}),
            "expected a larger multiple of 4");
        EXPECT_ERROR(
            Error,
            PeriodicModelAverager(group, {}, {}),
            "there are no tensors");
        EXPECT_ERROR(
            Error,
            PeriodicModelAverager(group, {own[0], own[0]}, {}),
            "two tensors are called 'p0'");
        EXPECT_ERROR(
            Error,
            PeriodicModelAverager(
                group, {{"s", torch::ones({2, 2}).to_sparse()}}, {}),
            "'s' is no dense tensor of numbers");
        EXPECT_ERROR(
            Error,
            PeriodicModelAverager(
                group, float_tensors(0, {group.rank() == 1 ? 6 : 5}), {}),
            "tensor 'p0' is 'Float [5]' on rank 0 but 'Float [6]' on rank 1");
        // Nothing is left behind.
        periodic({});
      },
      without_sockets());
}

TEST(ModelAverager, ALostRankIsNamedAndTensorsAreAsTheyWere) {
  for (const std::string average : {"allreduce", "int8"}) {
    run_threads(
        2,
        [&](const Group& group) {
          const auto own = float_tensors(group.rank(), {300});
          PeriodicModelAverager averager(group, own, {.average = average});
          averager.average_parameters();
          if (group.rank() == 1) {
            return;
          }
          learn(own, 0, 0);
          const auto before = own[0].tensor.clone();
          EXPECT_ERROR(
              CommError, averager.average_parameters(), "rank 0", "rank 1");
          EXPECT_TRUE(test::same_bits(own[0].tensor, before));
          EXPECT_EQ(averager.step(), 1);
        },
        without_sockets(std::chrono::seconds(3)));
  }
}

}  // namespace
}  // namespace gradwire
