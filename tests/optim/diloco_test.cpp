#include "gradwire/optim/diloco.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/optim/replicas.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"

namespace gradwire {
namespace {

using test::average_of;
using test::expect_same;
using test::float_tensors;
using test::learn;
using test::run_threads;
using test::without_sockets;

// Fragments by size: p0 alone, the others together.
const std::vector<std::int64_t> kSizes{60, 30, 24};
const std::vector<std::vector<std::size_t>> kTwoFragments{{0}, {1, 2}};

// DiLoCo of all ranks in one place, with Torch's SGD as the outer optimizer.
class PlainDiLoCo {
 public:
  PlainDiLoCo(
      int world,
      const NamedTensorList& start,
      const DiLoCoOptions& options,
      std::vector<std::vector<std::size_t>> fragments)
      : options_(options), fragments_(std::move(fragments)) {
    for (int rank = 0; rank < world; ++rank) {
      NamedTensorList copy;
      for (const auto& [name, tensor] : start) {
        copy.push_back({name, tensor.clone()});
      }
      replicas.push_back(copy);
    }
    for (const auto& [name, tensor] : start) {
      anchors.push_back({name, tensor.clone()});
    }
    for (const auto& members : fragments_) {
      std::vector<at::Tensor> own;
      for (const std::size_t i : members) {
        own.push_back(anchors[i].tensor);
      }
      outer_.push_back(std::make_unique<torch::optim::SGD>(
          own,
          torch::optim::SGDOptions(options.outer_lr)
              .momentum(options.outer_momentum)
              .nesterov(options.outer_momentum > 0)));
    }
    on_their_way_.resize(fragments_.size());
  }

  void step() {
    ++steps_;
    const auto count = static_cast<std::int64_t>(fragments_.size());
    for (std::size_t f = 0; f < fragments_.size(); ++f) {
      if (on_their_way_[f].due == steps_) {
        arrive(f);
      }
    }
    for (std::size_t f = 0; f < fragments_.size(); ++f) {
      const auto offset =
          static_cast<std::int64_t>(f) * options_.period / count;
      if (steps_ % options_.period == offset) {
        leave(f);
        if (options_.delay == 0) {
          arrive(f);
        }
      }
    }
  }

  std::vector<NamedTensorList> replicas;
  NamedTensorList anchors;

 private:
  struct Difference {
    std::vector<at::Tensor> averages = {};
    std::int64_t due = -1;
  };

  void leave(std::size_t fragment) {
    auto& [averages, due] = on_their_way_[fragment];
    averages.clear();
    for (const std::size_t i : fragments_[fragment]) {
      std::vector<NamedTensorList> differences;
      for (const auto& replica : replicas) {
        differences.push_back({{"", anchors[i].tensor - replica[i].tensor}});
      }
      averages.push_back(average_of(differences, 0, 0, replicas.size()));
    }
    due = steps_ + options_.delay;
  }

  void arrive(std::size_t fragment) {
    const auto& members = fragments_[fragment];
    for (std::size_t k = 0; k < members.size(); ++k) {
      anchors[members[k]].tensor.mutable_grad() =
          on_their_way_[fragment].averages[k];
    }
    outer_[fragment]->step();
    for (auto& replica : replicas) {
      for (const std::size_t i : members) {
        if (options_.mix > 0) {
          replica[i].tensor.mul_(options_.mix);
          replica[i].tensor.add_(anchors[i].tensor, 1 - options_.mix);
        } else {
          replica[i].tensor.copy_(anchors[i].tensor);
        }
      }
    }
  }

  DiLoCoOptions options_;
  std::vector<std::vector<std::size_t>> fragments_;
  std::vector<std::unique_ptr<torch::optim::SGD>> outer_;
  std::vector<Difference> on_their_way_;
  std::int64_t steps_ = 0;
};

void expect_like_plain(
    int world,
    const DiLoCoOptions& options,
    const std::vector<std::vector<std::size_t>>& fragments,
    std::int64_t outer_steps) {
  run_threads(
      world,
      [&](const Group& group) {
        const auto own = float_tensors(group.rank(), kSizes);
        DiLoCo diloco(group, own, options);
        PlainDiLoCo plain(world, float_tensors(0, kSizes), options, fragments);
        for (int step = 0; step < 14; ++step) {
          const std::string where = concat("step ", step);
          const auto& mine =
              plain.replicas[static_cast<std::size_t>(group.rank())];
          expect_same(own, mine, where);
          expect_same(diloco.anchor(), plain.anchors, where);
          EXPECT_TRUE(test::equal_everywhere(group, diloco.anchor()));
          learn(own, group.rank(), step);
          for (int rank = 0; rank < world; ++rank) {
            learn(plain.replicas[static_cast<std::size_t>(rank)], rank, step);
          }
          diloco.step();
          plain.step();
        }
        EXPECT_EQ(diloco.stats().steps, 14);
        EXPECT_EQ(diloco.stats().outer_steps, outer_steps);
      },
      without_sockets());
}

TEST(DiLoCo, IsSgdOnAveragedDifferencesToTheBit) {
  for (const int world : {1, 2, 3}) {
    expect_like_plain(world, {.period = 4}, {{0, 1, 2}}, 3);
  }
  expect_like_plain(
      2, {.period = 1, .outer_lr = 1, .outer_momentum = 0}, {{0, 1, 2}}, 14);
}

TEST(DiLoCo, FragmentsAreSpreadOverThePeriod) {
  expect_like_plain(2, {.period = 5, .fragments = 2}, kTwoFragments, 5);
  expect_like_plain(
      2, {.period = 3, .fragments = 3}, {{0}, {1}, {2}}, 4 + 5 + 5);
}

TEST(DiLoCo, FragmentsArriveLater) {
  // One fragment leaves after steps 4, 8 and 12, the other after 2, 6, 10 and
  // 14, which has not arrived at the end.
  expect_like_plain(
      2, {.period = 4, .fragments = 2, .delay = 2}, kTwoFragments, 3 + 3);
  expect_like_plain(
      3,
      {.period = 4, .fragments = 2, .delay = 1, .mix = 0.5},
      kTwoFragments,
      3 + 3);
  // As late as can be: the next exchange begins when the last one ends.
  expect_like_plain(2, {.period = 4, .delay = 4}, {{0, 1, 2}}, 2);
}

// Of all types, with an average that loses something.
TEST(DiLoCo, RanksAreIdenticalAfterEveryOuterStep) {
  for (const std::string average :
       {"int8", "int4", "fp8", "bf16", "powersgd:start=0"}) {
    run_threads(
        3,
        [&](const Group& group) {
          auto own = test::mixed_tensors(group.rank());
          own.push_back(
              {"matrix", test::random_tensor({40, 30}, group.rank())});
          DiLoCo diloco(group, own, {.period = 3, .average = average});
          EXPECT_TRUE(test::equal_everywhere(group, own));
          for (int step = 1; step <= 9; ++step) {
            learn(own, group.rank(), step);
            diloco.step();
            EXPECT_EQ(test::equal_everywhere(group, own), step % 3 == 0)
                << average << " " << step;
            EXPECT_TRUE(test::equal_everywhere(group, diloco.anchor()));
          }
        },
        without_sockets());
  }
}

// What codes lose is sent later: with momentum 0 and a rate of 1 the anchor
// follows the exact average, however coarse the codes.
TEST(DiLoCo, ErrorFeedbackPaysWhatCodesLose) {
  run_threads(
      2,
      [](const Group& group) {
        const auto own = float_tensors(0, {5000});
        const auto start = own[0].tensor.clone();
        DiLoCo diloco(
            group,
            own,
            {.period = 1,
             .outer_lr = 1,
             .outer_momentum = 0,
             .average = "int4"});
        auto exact = torch::zeros({5000}, torch::kDouble);
        double worst = 0;
        for (int step = 0; step < 20; ++step) {
          learn(own, group.rank(), step);
          exact += test::exact_mean(
              group, own[0].tensor - diloco.anchor()[0].tensor);
          diloco.step();
          const auto off = own[0].tensor - start - exact;
          worst = std::max(worst, off.abs().max().item<double>());
        }
        // One step's loss, not the sum of twenty.
        EXPECT_GT(worst, 0);
        EXPECT_LT(worst, 0.1);
      },
      without_sockets());
}

TEST(DiLoCo, SendsOnlyWhatAnOuterStepTakes) {
  const auto sent = [](const std::string& average) {
    std::int64_t bytes = 0;
    run_threads(2, [&](const Group& group) {
      const auto own = float_tensors(group.rank(), {40'000});
      DiLoCo diloco(group, own, {.period = 4, .average = average});
      const auto before = diloco.stats().sent;
      for (int i = 0; i < 3; ++i) {
        diloco.step();
      }
      EXPECT_EQ(diloco.stats().sent, before);
      diloco.step();
      if (group.rank() == 1) {
        bytes = (diloco.stats().sent - before).total();
      }
      // Nothing to finish: all ranks are at the anchor.
      const auto after = diloco.stats().sent;
      diloco.finish();
      EXPECT_EQ(diloco.stats().sent, after);
    });
    return bytes;
  };
  EXPECT_EQ(sent("allreduce"), 160'000);
  EXPECT_LT(sent("int8"), 41'000);
  EXPECT_LT(sent("int4"), 21'000);
}

TEST(DiLoCo, FinishLeavesAllRanksWithTheSameModel) {
  run_threads(
      3,
      [](const Group& group) {
        const auto own = test::mixed_tensors(group.rank());
        DiLoCo diloco(
            group,
            own,
            {.period = 6,
             .average = "int8",
             .fragments = 2,
             .delay = 3,
             .mix = 0.5});
        // A fragment is on its way.
        for (int step = 0; step < 7; ++step) {
          learn(own, group.rank(), step);
          diloco.step();
        }
        EXPECT_FALSE(test::equal_everywhere(group, own));
        diloco.finish();
        EXPECT_EQ(diloco.stats().outer_steps, 2);
        EXPECT_TRUE(test::equal_everywhere(group, own));
        const auto sent = diloco.stats().sent;
        diloco.finish();
        EXPECT_EQ(diloco.stats().sent, sent);
        // And goes on.
        learn(own, group.rank(), 8);
        diloco.step();
        const auto expected =
            test::exact_mean(group, own[4].tensor.reshape({1}));
        diloco.finish();
        EXPECT_NEAR(own[4].tensor.item<float>(), expected.item<float>(), 1e-6);
        EXPECT_TRUE(test::equal_everywhere(group, diloco.anchor()));
      },
      without_sockets());
}

// Also while a fragment is on its way, and with residuals.
TEST(DiLoCo, GoesOnWithTheSameBits) {
  for (const std::string average :
       {"allreduce", "int4", "batched_powersgd:start=0,alternate=on"}) {
    for (const int saved_after : {3, 5, 6}) {
      const test::TemporaryFolder folder;
      run_threads(
          2,
          [&](const Group& group) {
            const int rank = group.rank();
            const DiLoCoOptions options{
                .period = 4,
                .average = average,
                .fragments = 2,
                .delay = 2,
                .mix = 0.25};
            const auto own = float_tensors(rank, kSizes);
            DiLoCo diloco(group, own, options);
            const auto go_on = [&](DiLoCo& which,
                                   const NamedTensorList& tensors,
                                   int from,
                                   int to) {
              for (int step = from; step < to; ++step) {
                learn(tensors, rank, step);
                which.step();
              }
            };
            go_on(diloco, own, 0, saved_after);
            diloco.save(folder.path());
            const HookRecord record =
                decode_record(encode_record(diloco.state()), "here");
            const auto first = float_tensors(rank + 9, kSizes);
            DiLoCo from_folder(group, first, options);
            from_folder.load(folder.path());
            const auto second = float_tensors(rank + 5, kSizes);
            DiLoCo from_memory(group, second, options);
            go_on(from_memory, second, 0, 7);
            from_memory.set_state(record);
            go_on(diloco, own, saved_after, 13);
            go_on(from_folder, first, saved_after, 13);
            go_on(from_memory, second, saved_after, 13);
            expect_same(first, own, "from a folder");
            expect_same(second, own, "from memory");
            expect_same(
                from_folder.anchor(), diloco.anchor(), "anchor from a folder");
            EXPECT_EQ(
                from_folder.stats().outer_steps, diloco.stats().outer_steps);
          },
          without_sockets());
    }
  }
}

TEST(DiLoCo, GoesOnInAnotherWorld) {
  const test::TemporaryFolder folder;
  NamedTensorList anchor;
  const DiLoCoOptions options{
      .period = 4, .average = "int4", .fragments = 2, .delay = 1};
  run_threads(
      4,
      [&](const Group& group) {
        const auto own = float_tensors(group.rank(), kSizes);
        DiLoCo diloco(group, own, options);
        for (int step = 0; step < 6; ++step) {
          learn(own, group.rank(), step);
          diloco.step();
        }
        diloco.save(folder.path());
        if (group.rank() == 0) {
          for (const auto& [name, tensor] : diloco.anchor()) {
            anchor.push_back({name, tensor.clone()});
          }
        }
      },
      without_sockets());
  run_threads(
      3,
      [&](const Group& group) {
        const auto own = float_tensors(group.rank() + 7, kSizes);
        DiLoCo diloco(group, own, options);
        diloco.load(folder.path());
        expect_same(diloco.anchor(), anchor, "anchor");
        EXPECT_EQ(diloco.stats().steps, 6);
        for (int step = 6; step < 10; ++step) {
          learn(own, group.rank(), step);
          diloco.step();
          EXPECT_TRUE(test::equal_everywhere(group, diloco.anchor()));
        }
        diloco.finish();
        EXPECT_TRUE(test::equal_everywhere(group, own));
      },
      without_sockets());
}

TEST(DiLoCo, RefusesStatesOfOthers) {
  const test::TemporaryFolder folder;
  run_threads(
      2,
      [&](const Group& group) {
        const auto own = float_tensors(group.rank(), kSizes);
        DiLoCo diloco(group, own, {.period = 4, .average = "int8"});
        EXPECT_ERROR(
            Error, diloco.load(folder.path()), "diloco.rank0", "not exist");
        diloco.save(folder.path());
        const auto other = [&](const DiLoCoOptions& options) {
          DiLoCo(group, own, options).load(folder.path());
        };
        EXPECT_ERROR(
            Error,
            other({.period = 4}),
            "is of hook 'diloco(int8)', expected 'diloco(allreduce)'");
        EXPECT_ERROR(
            Error,
            other({.period = 5, .average = "int8"}),
            "the state was saved with period 4, expected 5");
        EXPECT_ERROR(
            Error,
            other({.period = 4, .average = "int8", .fragments = 2}),
            "fragments 1, expected 2");
        const auto broken = [&](const auto& change) {
          HookRecord record = diloco.state();
          change(record.state);
          diloco.set_state(record);
        };
        EXPECT_ERROR(
            Error,
            broken([](HookState& state) { state.numbers["pending"] = 1; }),
            "the state has no fragment 1");
        EXPECT_ERROR(
            Error,
            broken([](HookState& state) { state.numbers["pending"] = 0; }),
            "no number 'due'");
        EXPECT_ERROR(
            Error,
            broken([](HookState& state) { state.shared.erase("momentum/p1"); }),
            "the state has no 'momentum' of type Float and sizes [30] for "
            "'p1'");
        EXPECT_ERROR(
            Error,
            broken([](HookState& state) {
              state.shared["anchor/p1"] = torch::zeros({30}, torch::kLong);
            }),
            "the state has no 'anchor'");
        broken([](HookState&) {});
      },
      without_sockets());
}

TEST(DiLoCo, BadArgumentsAreErrorsOnEveryRank) {
  run_threads(
      3,
      [](const Group& group) {
        const auto own = float_tensors(group.rank(), kSizes);
        const auto make = [&](const DiLoCoOptions& options) {
          DiLoCo(group, own, options);
        };
        EXPECT_ERROR(Error, make({.period = 0}), "period is 0, expected 1");
        EXPECT_ERROR(Error, make({.outer_lr = 0}), "outer_lr is 0");
        EXPECT_ERROR(
            Error,
            make({.outer_momentum = 1.5}),
            "outer_momentum is 1.5, expected from 0 to 1");
        EXPECT_ERROR(Error, make({.mix = NAN}), "mix is nan");
        EXPECT_ERROR(Error, make({.mix = 0.5}), "mix is 0.5 without a delay");
        EXPECT_ERROR(
            Error,
            make({.fragments = 4}),
            "fragments is 4 for 3 parameters and a period of 32, expected "
            "from 1 to 3");
        EXPECT_ERROR(Error, make({.period = 2, .fragments = 3}), "from 1 to 2");
        EXPECT_ERROR(
            Error,
            make({.period = 5, .fragments = 2, .delay = 3}),
            "delay is 3, expected from 0 to period / fragments = 2");
        EXPECT_ERROR(Error, make({.average = "int3"}), "unknown hook 'int3'");
        EXPECT_ERROR(
            Error,
            make({.average = "noop"}),
            "average is 'noop', expected a hook that averages over all ranks");
        EXPECT_ERROR(
            Error,
            make({.period = group.rank() == 2 ? 8 : 4}),
            "ranks do not agree on DiLoCo: period is '4' on rank 0 but '8' on "
            "rank 2");
        EXPECT_ERROR(
            Error,
            make({.period = group.rank() == 2 ? 0 : 4}),
            "period is 0, expected 1");
        EXPECT_ERROR(
            Error,
            DiLoCo(group, {{"n", torch::ones({3}, torch::kLong)}}),
            "'n' is of Long, expected one of floats");
        make({});
      },
      without_sockets());
}

TEST(DiLoCo, ALostRankIsNamedAndParametersAreAsTheyWere) {
  for (const std::string average : {"allreduce", "int8"}) {
    for (const std::int64_t delay : {0, 1}) {
      run_threads(
          2,
          [&](const Group& group) {
            const auto own = float_tensors(group.rank(), kSizes);
            DiLoCo diloco(
                group, own, {.period = 2, .average = average, .delay = delay});
            diloco.step();
            if (group.rank() == 1) {
              return;
            }
            learn(own, 0, 0);
            const auto before = own[0].tensor.clone();
            const auto anchor = diloco.anchor()[0].tensor.clone();
            EXPECT_ERROR(
                CommError,
                for (int i = 0; i <= delay; ++i) { diloco.step(); },
                "rank 0",
                "rank 1");
            EXPECT_TRUE(test::same_bits(own[0].tensor, before));
            EXPECT_TRUE(test::same_bits(diloco.anchor()[0].tensor, anchor));
          },
          without_sockets(std::chrono::seconds(3)));
    }
  }
}

}  // namespace
}  // namespace gradwire
