// A sharded optimizer that steps inside of backward.

#include "gradwire/optim/zero_overlap.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "gradwire/ddp/join.h"
#include "tests/optim/overlap_twins.h"
#include "tests/optim/zero_case.h"
#include "tests/support/expect.h"
#include "tests/support/moody_hook.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using test::run_threads;
using torch::optim::OptimizerParamGroup;

const test::RankOptions kOverlapRanks{.transport = "local"};

// Buckets of several parameters and of a part of one layer; one layer may be
// left out.
struct ZeroNet : torch::nn::Module {
  ZeroNet() {
    const torch::NoGradGuard no_grad;
    conv->weight.set_data(
        conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    test::fill_parameters(*this, 3);
  }
  at::Tensor forward(const at::Tensor& x, bool with_side) {
    auto y = torch::tanh(conv(x.view({-1, 4, 5, 5})).flatten(1));
    y = torch::tanh(wide(y));
    return with_side ? last(y + side(y)) : last(y);
  }
  torch::nn::Conv2d conv = register_module(
      "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 16, 3)));
  torch::nn::Linear wide = register_module("wide", torch::nn::Linear(144, 60));
  torch::nn::Linear side = register_module("side", torch::nn::Linear(60, 60));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(60, 3));
};

at::Tensor zero_batch(int rank, int step) {
  return test::random_tensor({6, 100}, 100 * step + rank);
}

// How a DDP is trained, with either kind of optimizer.
struct ZeroWay {
  std::string hook = "allreduce";
  DistributedDataParallelOptions ddp = {};
  // Local backwards before each averaged one.
  int local = 0;
  // Ranks with their bit set use the side layer in odd steps.
  unsigned side_of = ~0U;
  // Steps that a rank has input for; under a Join where they differ.
  std::vector<int> inputs = {};
};

enum class ZeroStepping { kPlain, kAfter, kInterleaved };

std::vector<at::Tensor> train_zero(
    const Group& group, const ZeroWay& way, ZeroStepping stepping) {
  auto net = std::make_shared<ZeroNet>();
  auto options = way.ddp;
  options.hook = way.hook;
  options.bucket_cap_mb = 0.02;
  options.first_bucket_cap_mb = 0.01;
  options.init_sync = false;
  const auto adam = test::adam_case();
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (stepping == ZeroStepping::kPlain) {
    optimizer = adam.plain({OptimizerParamGroup(net->parameters())});
  } else {
    auto zero = std::make_unique<ZeroRedundancyOptimizer>(
        group, net->parameters(), adam.sliced);
    options.hook = zero_overlap(
        way.hook,
        *zero,
        {.interleaved = stepping == ZeroStepping::kInterleaved});
    optimizer = std::move(zero);
  }
  DistributedDataParallel ddp(net, group, options);
  const int rank = group.rank();
  const auto run = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer->zero_grad();
      if (way.inputs.empty()) {
        optimizer->param_groups()[0].options().set_lr(0.01 / (1 + step));
      }
      const bool side = step % 2 == 0 || ((way.side_of >> rank) & 1) != 0;
      const auto backward = [&](int micro) {
        ddp->forward(zero_batch(rank, 7 * step + micro), side)
            .square()
            .sum()
            .backward();
      };
      for (int micro = 0; micro < way.local; ++micro) {
        const auto guard = ddp->no_sync();
        backward(micro);
      }
      backward(way.local);
      optimizer->step();
    }
  };
  if (way.inputs.empty()) {
    run(4);
  } else {
    Join join(ddp);
    run(way.inputs[static_cast<std::size_t>(rank)]);
  }
  std::vector<at::Tensor> result;
  for (const auto& parameter : net->parameters()) {
    EXPECT_TRUE(test::same_on_all_ranks(group, parameter));
    result.push_back(parameter.detach());
  }
  return result;
}

void expect_zero_parity(
    int world, const ZeroWay& way, const std::string& what) {
  run_threads(
      world,
      [&](const Group& group) {
        const auto expected = train_zero(group, way, ZeroStepping::kPlain);
        for (const auto stepping :
             {ZeroStepping::kAfter, ZeroStepping::kInterleaved}) {
          test::expect_same(
              train_zero(group, way, stepping),
              expected,
              concat(
                  what,
                  stepping == ZeroStepping::kAfter ? ", after"
                                                   : ", interleaved"));
        }
      },
      kOverlapRanks);
}

TEST(ZeroOverlap, StepsAsBackwardAndStep) {
  for (const int world : {1, 2, 4}) {
    expect_zero_parity(world, {}, concat(world, " ranks"));
  }
  expect_zero_parity(3, {.hook = "int8"}, "int8");
}

TEST(ZeroOverlap, StepsInEveryKindOfDdp) {
  expect_zero_parity(
      2, {.ddp = {.gradient_as_bucket_view = true}}, "bucket view");
  expect_zero_parity(2, {.ddp = {.static_graph = true}}, "static graph");
  expect_zero_parity(2, {.local = 2}, "no_sync");
}

TEST(ZeroOverlap, StepsEveryKindOfParameter) {
  run_threads(
      3,
      [](const Group& group) {
        std::vector<std::vector<at::Tensor>> results;
        for (const bool sharded : {false, true}) {
          auto net = std::make_shared<test::Varied>();
          const auto sgd = test::sgd_case();
          const auto parameters = net->parameters();
          const auto plain = sgd.plain({OptimizerParamGroup(parameters)});
          ZeroRedundancyOptimizer zero(group, parameters, sgd.sliced);
          DistributedDataParallel ddp(
              net,
              group,
              {.hook = sharded ? zero_overlap("allreduce", zero)
                               : HookChoice("allreduce")});
          for (int step = 0; step < 3; ++step) {
            ddp->zero_grad();
            ddp->forward(test::images(group.rank(), step))
                .square()
                .sum()
                .backward();
            if (!sharded) {
              plain->step();
            }
          }
          results.push_back(parameters);
        }
        test::expect_same(results[1], results[0], "varied");
      },
      kOverlapRanks);
}

// A parameter that nobody used does not step; one that some rank used does, on
// all ranks.
TEST(ZeroOverlap, StepsWhatSomeRankUsed) {
  for (const unsigned side_of : {0U, 1U, 2U}) {
    expect_zero_parity(
        2,
        {.ddp = {.find_unused_parameters = true}, .side_of = side_of},
        concat("side layer of ", side_of));
  }
}

TEST(ZeroOverlap, TakesRanksWithoutInputAlong) {
  ZeroWay way{.inputs = {3, 1, 4}};
  run_threads(
      3,
      [&](const Group& group) {
        const auto after = train_zero(group, way, ZeroStepping::kAfter);
        const auto interleaved =
            train_zero(group, way, ZeroStepping::kInterleaved);
        const auto expected = train_zero(group, way, ZeroStepping::kPlain);
        test::expect_same(after, expected, "after");
        test::expect_same(interleaved, expected, "interleaved");
      },
      kOverlapRanks);
}

TEST(ZeroOverlap, ReturnsTheStepWhenItIsGone) {
  run_threads(
      2,
      [](const Group& group) {
        auto net = std::make_shared<ZeroNet>();
        ZeroRedundancyOptimizer zero(
            group, net->parameters(), test::sgd_case().sliced);
        DistributedDataParallel ddp(
            net, group, {.hook = zero_overlap("allreduce", zero)});
        EXPECT_EQ(ddp->hook(), "zero_overlap(allreduce)");
        EXPECT_ERROR(
            Error,
            ddp->set_hook(zero_overlap("allreduce", zero)),
            "overlapped with another DDP already");
        const auto backward = [&](int step) {
          zero.zero_grad();
          ddp->forward(zero_batch(group.rank(), step), true).sum().backward();
        };
        backward(0);
        const auto stepped = net->wide->weight.clone();
        zero.step();
        EXPECT_TRUE(torch::equal(net->wide->weight, stepped));
        EXPECT_EQ(zero.stats().steps, 1);
        ddp->set_hook("none");
        backward(1);
        EXPECT_TRUE(torch::equal(net->wide->weight, stepped));
        zero.step();
        EXPECT_FALSE(torch::equal(net->wide->weight, stepped));
        EXPECT_EQ(zero.stats().steps, 2);
      },
      kOverlapRanks);
}

TEST(ZeroOverlap, IsOfTheDdpsParameters) {
  run_threads(
      2,
      [](const Group& group) {
        auto net = std::make_shared<ZeroNet>();
        auto parameters = net->parameters();
        parameters.push_back(torch::zeros({3}, torch::requires_grad()));
        ZeroRedundancyOptimizer zero(
            group, parameters, test::sgd_case().sliced);
        EXPECT_ERROR(
            Error,
            DistributedDataParallel(
                net, group, {.hook = zero_overlap("none", zero)}),
            "parameter '8' of the optimizer is none that the DDP averages");
      },
      kOverlapRanks);
}

// A bucket that fails on all ranks costs its step and those that follow.
TEST(ZeroOverlap, GoesOnAfterAFailedBucket) {
  run_threads(
      2,
      [](const Group& group) {
        auto net = std::make_shared<ZeroNet>();
        bool fail_now = false;
        ZeroRedundancyOptimizer zero(
            group, net->parameters(), test::sgd_case().sliced);
        DistributedDataParallel ddp(
            net,
            group,
            {.hook = zero_overlap(test::moody_hook(group, fail_now, 1), zero),
             .bucket_cap_mb = 0.02,
             .first_bucket_cap_mb = 0.01});
        const auto backward = [&](int step) {
          zero.zero_grad();
          ddp->forward(zero_batch(group.rank(), step), true).sum().backward();
        };
        backward(0);
        fail_now = true;
        EXPECT_ERROR(Error, backward(1), "bad mood");
        fail_now = false;
        const auto before = net->conv->weight.clone();
        backward(2);
        EXPECT_FALSE(torch::equal(net->conv->weight, before));
        for (const auto& parameter : net->parameters()) {
          EXPECT_TRUE(test::same_on_all_ranks(group, parameter));
        }
      },
      kOverlapRanks);
}

TEST(ZeroOverlap, NamesALostRankInBackward) {
  run_threads(
      3,
      [](const Group& group) {
        auto net = std::make_shared<ZeroNet>();
        ZeroRedundancyOptimizer zero(
            group, net->parameters(), test::sgd_case().sliced);
        DistributedDataParallel ddp(
            net, group, {.hook = zero_overlap("int8", zero)});
        const auto backward = [&](int step) {
          zero.zero_grad();
          ddp->forward(zero_batch(group.rank(), step), true).sum().backward();
        };
        // The second forward exchanges buckets.
        backward(0);
        backward(1);
        if (group.rank() == 2) {
          return;
        }
        EXPECT_ERROR(CommError, backward(2), "rank 2");
      },
      {.timeout = std::chrono::seconds(4)});
}

}  // namespace
}  // namespace gradwire
