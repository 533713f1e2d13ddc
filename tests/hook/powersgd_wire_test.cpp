// What PowerSGD sends, to the byte, and what it says about it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "gradwire/hook/low_rank.h"
#include "gradwire/hook/registry.h"
#include "tests/hook/named_gradients.h"
#include "tests/support/allocations.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::random_tensor;
using test::reduce;
using test::run_threads;
using test::Shapes;

// Of models without their weights: shapes are enough.
std::int64_t wire_floats(const Shapes& shapes, std::int64_t rank) {
  std::vector<std::shared_ptr<const Parameter>> parameters;
  std::int64_t elems = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto tensor = torch::empty(shapes[i], torch::kMeta);
    elems += tensor.numel();
    parameters.push_back(
        std::make_shared<const Parameter>(Parameter{concat("p", i), tensor}));
  }
  const Bucket bucket(0, true, torch::empty({elems}, torch::kMeta), parameters);
  const LowRank low_rank(
      bucket,
      {.rank = rank, .min_compression_rate = 1},
      LowRank::Matrices::kParameters);
  std::int64_t sent = 0;
  for (const auto& report : low_rank.report()) {
    sent += report.sent_elems;
  }
  return sent;
}

// The paper's models and two others, against figures computed elsewhere.
TEST(PowerSgdWire, FloatsOfKnownModels) {
  const auto all = [](const Shapes& shapes) {
    std::vector<std::int64_t> result;
    for (const std::int64_t rank : {1, 2, 4}) {
      result.push_back(wire_floats(shapes, rank));
    }
    return result;
  };
  using Floats = std::vector<std::int64_t>;
  EXPECT_EQ(all(test::resnet18()), (Floats{45935, 82260, 154910}));
  EXPECT_EQ(all(test::resnet50()), (Floats{136611, 219102, 384084}));
  EXPECT_EQ(all(test::gpt2()), (Floats{321617, 521890, 922436}));
  EXPECT_EQ(all(test::lstm()), (Floats{93488, 142507, 240545}));
  EXPECT_NEAR(static_cast<double>(wire_floats(test::gpt2(), 32)), 6.53e6, 5e3);
}

// A ring sends everything 2(W-1) times, over all ranks.
TEST(PowerSgdWire, BytesAreThoseOfTheFactorsToTheByte) {
  struct Case {
    std::string options;
    std::int64_t floats;
  };
  const Shapes shapes{{200, 300}, {100}, {50, 80}};
  const std::int64_t left = 4 * (200 + 50);
  const std::int64_t right = 4 * (300 + 80);
  for (const Case& c : std::vector<Case>{
           {"", left + right + 100},
           {",iterations=2", 2 * (left + right) + 100},
           {",alternate=on", right + 100}}) {
    for (const int world : {2, 3, 4}) {
      run_threads(world, [&](const Group& group) {
        const auto hook =
            make_hook("powersgd:rank=4,start=0" + c.options, group);
        const auto mine = test::random_gradients(shapes, group.rank());
        reduce(*hook, mine, 3);
        const auto before = group.bytes_sent();
        reduce(*hook, mine, 3);
        auto sent = torch::tensor(
            {group.bytes_sent().payload - before.payload}, torch::kLong);
        group.all_reduce(sent).wait();
        EXPECT_EQ(sent.item<std::int64_t>(), 2 * (world - 1) * 4 * c.floats)
            << c.options << " " << world;
      });
    }
  }
}

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(
      torch::nn::Linear(40, 60), torch::nn::Tanh(), torch::nn::Linear(60, 30));
  test::fill_parameters(*net, 3);
  return net;
}

TEST(PowerSgdWire, StatsSayWhatBecameOfEveryParameter) {
  run_threads(2, [](const Group& group) {
    auto ddp = DistributedDataParallel(
        make_net(), group, {.hook = "powersgd:rank=2,start=2,stats=1"});
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(ddp->stats().by_parameter.empty(), i < 3);
      const auto input = random_tensor({16, 40}, 10 * i + group.rank());
      ddp->forward(input).square().mean().backward();
    }
    const Stats stats = ddp->stats();
    std::map<std::string, ParameterReport> reports;
    for (const auto& report : stats.by_parameter) {
      reports[report.name] = report;
    }
    ASSERT_EQ(reports.size(), 4u);
    EXPECT_EQ(reports["0.weight"].rank, 2);
    EXPECT_EQ(reports["0.weight"].elems, 2400);
    EXPECT_EQ(reports["0.weight"].sent_elems, 2 * (60 + 40));
    EXPECT_GT(reports["0.weight"].residual_norm, 0);
    EXPECT_EQ(reports["2.bias"].rank, 0);
    EXPECT_EQ(reports["2.bias"].sent_elems, 30);
    EXPECT_TRUE(std::isnan(reports["2.bias"].residual_norm));
    const double sent = 2 * (60 + 40) + 2 * (60 + 30) + 60 + 30;
    EXPECT_DOUBLE_EQ(compression_ratio(stats), (2400 + 1800 + 90) / sent);
    std::ostringstream text;
    text << stats;
    EXPECT_THAT(
        text.str(),
        testing::HasSubstr("gradients of 4290 numbers sent as 470, 9.1 times "
                           "fewer: 2 of 4 parameters by low rank"));
  });
}

// The norm that stats() reports is that of the residual which is saved.
TEST(PowerSgdWire, ResidualNormsAreThoseOfTheResiduals) {
  run_threads(2, [](const Group& group) {
    for (const std::string name : {"powersgd", "batched_powersgd"}) {
      const auto hook = make_hook(name + ":rank=2,start=0,stats=1", group);
      reduce(*hook, test::random_gradients({{30, 40}, {20, 50}}, group.rank()));
      HookState state;
      hook->save(state);
      for (const auto& report : hook->report()) {
        EXPECT_NEAR(
            report.residual_norm,
            state.residuals.at(report.name).norm().item<double>(),
            1e-4);
      }
    }
  });
}

// Up to rounding: what was accumulated is what is compressed.
TEST(PowerSgdWire, GradientAccumulationComesBeforeCompression) {
  run_threads(2, [](const Group& group) {
    auto once = DistributedDataParallel(
        make_net(), group, {.hook = "powersgd:rank=2,start=0"});
    auto twice = DistributedDataParallel(
        make_net(), group, {.hook = "powersgd:rank=2,start=0"});
    for (int i = 0; i < 3; ++i) {
      const auto input = random_tensor({16, 40}, 10 * i + group.rank());
      once->zero_grad();
      twice->zero_grad();
      once->forward(input).square().mean().backward();
      {
        const auto no_sync = twice->no_sync();
        (twice->forward(input.slice(0, 0, 8)).square().mean() / 2).backward();
      }
      (twice->forward(input.slice(0, 8)).square().mean() / 2).backward();
      for (std::size_t k = 0; k < once->parameters().size(); ++k) {
        const auto expected = once->parameters()[k].grad();
        const auto difference = twice->parameters()[k].grad() - expected;
        EXPECT_LE(
            difference.abs().max().item<double>(),
            1e-4 * expected.abs().max().item<double>());
      }
    }
  });
}

// In place or by way of scratch, also when residuals are measured.
TEST(PowerSgdWire, NothingGradientSizedIsAllocatedAfterWarmUp) {
  run_threads(1, [](const Group& group) {
    for (const std::string spec :
         {"powersgd:rank=2,start=0,stats=1",
          "batched_powersgd:rank=2,start=0,stats=1",
          "powersgd:rank=2,start=0,stats=1,memory=bf16"}) {
      for (const auto type : {torch::kFloat, torch::kBFloat16}) {
        const auto hook = make_hook(spec, group);
        auto parameter = std::make_shared<const Parameter>(
            Parameter{"w", torch::zeros({1024, 1000}).to(type)});
        Bucket bucket(
            0, true, random_tensor({1024 * 1000}, 1).to(type), {parameter});
        const auto step = [&] {
          const test::HookStep step(*hook);
          hook->reduce(bucket).wait();
        };
        EXPECT_GT(test::large_allocations_of(step), 0);
        step();
        EXPECT_EQ(test::large_allocations_of(step), 0) << spec << " " << type;
      }
    }
  });
}

// The P all-reduce waits for a rank that is no more.
TEST(PowerSgdProcesses, ADeadRankIsNamed) {
  for (const std::string name : {"powersgd", "batched_powersgd"}) {
    test::run_processes(
        3,
        [&](const Group& group) {
          auto ddp = DistributedDataParallel(
              make_net(), group, {.hook = name + ":rank=2,start=0"});
          const auto input = random_tensor({16, 40}, group.rank());
          ddp->forward(input).sum().backward();
          auto loss = ddp->forward(input).sum();
          if (group.rank() == 1) {
            raise(SIGKILL);
          }
          EXPECT_ERROR(
              CommError,
              loss.backward(),
              "phase P",
              concat("rank ", group.rank()),
              "rank 1 does not answer)");
        },
        {.timeout = std::chrono::seconds(10), .may_die = {1}});
  }
}

}  // namespace
}  // namespace gradwire
