#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/comm_hook_type.h"
#include "gradwire/hook/low_rank.h"
#include "gradwire/hook/registry.h"
#include "tests/hook/model_shapes.h"
#include "tests/hook/powersgd_reference.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::NamedGradient;
using test::PowerSgdReference;
using test::random_tensor;
using test::run_threads;
using test::same_bits;
using test::Shapes;
using Gradients = std::vector<NamedGradient>;

// Matrices of several shapes, some alike, and all kinds of others.
const Shapes kShapes{
    {20, 30},
    {64},
    {20, 30},
    {},
    {8, 3, 5, 5},
    {0, 7},
    {1, 50},
    {50, 1},
    {20, 30},
    {6, 2, 2, 3, 4},
    {3, 3}};

Gradients random_gradients(
    const Shapes& shapes, std::uint64_t seed, std::size_t first = 0) {
  Gradients gradients;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    gradients.push_back(
        {concat("p", first + i), random_tensor(shapes[i], 100 * seed + i)});
  }
  return gradients;
}

// Matrices of which a few directions matter, each far smaller than the one
// before, which stay from step to step. Where two are about as large, rounding
// decides which one is sent first, and feedback never forgets it.
at::Tensor structured(
    at::IntArrayRef shape, std::uint64_t seed, int step, int rank) {
  auto gradient = 1e-4 * random_tensor(shape, 50 * step + rank);
  if (shape.size() < 2 || gradient.numel() == 0) {
    return gradient;
  }
  const auto rows = shape[0];
  const auto columns = gradient.numel() / rows;
  for (int i = 0; i < 3; ++i) {
    const auto u = random_tensor({rows, 1}, seed + 20 * i);
    const auto v = random_tensor({1, columns}, seed + 20 * i + 10);
    const double size = std::pow(0.02, i) * (1 + 0.2 * rank + 0.1 * step);
    gradient += size * u.matmul(v).view(shape);
  }
  return gradient;
}

// One backward: buckets of so many parameters each. The averages come back in
// the gradients' own shapes.
std::vector<at::Tensor> reduce(
    Hook& hook, const Gradients& gradients, std::size_t a_bucket = 4) {
  std::vector<Bucket> buckets;
  std::vector<Future> futures;
  for (std::size_t begin = 0; begin < gradients.size(); begin += a_bucket) {
    const auto end = std::min(begin + a_bucket, gradients.size());
    std::vector<at::Tensor> flat;
    std::vector<std::shared_ptr<const Parameter>> parameters;
    for (std::size_t i = begin; i < end; ++i) {
      flat.push_back(gradients[i].gradient.reshape({-1}));
      parameters.push_back(std::make_shared<const Parameter>(Parameter{
          gradients[i].name, torch::zeros_like(gradients[i].gradient)}));
    }
    buckets.emplace_back(
        buckets.size(), end == gradients.size(), torch::cat(flat), parameters);
    futures.push_back(hook.reduce(buckets.back()));
  }
  std::vector<at::Tensor> averages;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Bucket done = buckets[i].with_buffer(futures[i].wait());
    for (std::size_t k = 0; k < done.size(); ++k) {
      averages.push_back(done.gradient(k).clone());
    }
  }
  return averages;
}

// Relative to the largest element.
void expect_near(
    const std::vector<at::Tensor>& got,
    const std::vector<at::Tensor>& expected,
    double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i].numel() > 0) {
      const auto difference = (got[i].to(torch::kDouble) - expected[i]).abs() /
                              expected[i].abs().max().clamp_min(1e-30);
      EXPECT_LE(difference.max().item<double>(), tolerance)
          << "parameter " << i;
    }
  }
}

void expect_the_algorithm(
    int world,
    const std::string& options,
    const PowerSgdReference::Config& config) {
  SCOPED_TRACE(concat(options, ", ", world, " ranks"));
  run_threads(world, [&](const Group& group) {
    const auto hook = make_hook("powersgd:start=0," + options, group);
    PowerSgdReference reference(group, config);
    for (int i = 0; i < 20; ++i) {
      Gradients mine;
      for (std::size_t k = 0; k < kShapes.size(); ++k) {
        mine.push_back(
            {concat("p", k),
             structured(kShapes[k], 1000 * k, i, group.rank())});
      }
      const auto averages = reduce(*hook, mine);
      expect_near(averages, reference.step(mine), 1e-5);
      for (const auto& average : averages) {
        EXPECT_TRUE(test::same_on_all_ranks(group, average));
      }
    }
  });
}

TEST(PowerSgd, EqualsTheAlgorithm) {
  for (const int world : {1, 2, 3, 4}) {
    expect_the_algorithm(world, "rank=2", {.rank = 2});
  }
  expect_the_algorithm(2, "rank=1", {.rank = 1});
  expect_the_algorithm(2, "rank=2,batch=off", {.rank = 2});
  expect_the_algorithm(
      2, "rank=2,ef=off", {.rank = 2, .error_feedback = false});
  expect_the_algorithm(
      2, "rank=2,warm_start=off", {.rank = 2, .warm_start = false});
  expect_the_algorithm(
      2,
      "rank=2,ef=off,warm_start=off",
      {.rank = 2, .error_feedback = false, .warm_start = false});
  expect_the_algorithm(
      3,
      "rank=2,min_compression_rate=1.1",
      {.rank = 2, .min_compression_rate = 1.1});
}

TEST(PowerSgd, RecoversLowRankExactly) {
  run_threads(3, [](const Group& group) {
    const auto hook = make_hook("powersgd:rank=3,start=0", group);
    // Rank 1 on every rank, 3 together.
    const auto u = random_tensor({40, 1}, 10 + group.rank());
    const auto v = random_tensor({1, 70}, 20 + group.rank());
    const auto mine = u.matmul(v);
    for (int i = 0; i < 3; ++i) {
      const auto average = reduce(*hook, {{"w", mine}}).at(0);
      const auto expected = test::exact_mean(group, mine);
      EXPECT_LE((average - expected).abs().max().item<float>(), 1e-5);
    }
  });
}

TEST(PowerSgd, WhatWasNotSentIsOwed) {
  for (const std::string hook_name : {"powersgd", "batched_powersgd"}) {
    run_threads(2, [&](const Group& group) {
      const auto hook = make_hook(hook_name + ":rank=2,start=0", group);
      auto brought = torch::zeros({30, 40}, torch::kDouble);
      auto applied = torch::zeros({30, 40}, torch::kDouble);
      for (int i = 0; i < 50; ++i) {
        const auto mine = random_tensor({30, 40}, 100 * i + group.rank());
        brought += mine;
        applied += reduce(*hook, {{"w", mine}}).at(0);
      }
      HookState state;
      hook->save(state);
      auto owed = state.residuals.at("w").to(torch::kDouble).view({30, 40});
      group.all_reduce(owed).wait();
      group.all_reduce(brought).wait();
      const auto difference = applied * 2 - (brought - owed);
      EXPECT_LE(difference.abs().max().item<double>(), 1e-4) << hook_name;
      EXPECT_GT(owed.abs().max().item<double>(), 0.1);
    });
  }
}

TEST(PowerSgd, StartsInFullPrecision) {
  run_threads(2, [](const Group& group) {
    const auto hook = make_hook("powersgd:start=2", group);
    for (int i = 0; i < 4; ++i) {
      const auto mine = random_tensor({30, 30}, 10 * i + group.rank());
      const auto average = reduce(*hook, {{"w", mine}}).at(0);
      const auto difference = average - test::exact_mean(group, mine);
      EXPECT_EQ(difference.abs().max().item<float>() < 1e-6, i < 2) << i;
    }
  });
}

TEST(PowerSgd, MemoryFollowsParametersNotBuckets) {
  for (const std::string hook_name : {"powersgd:rank=2,start=0"}) {
    run_threads(2, [&](const Group& group) {
      const auto plain = make_hook(hook_name, group);
      const auto moved = make_hook(hook_name, group);
      const auto resumed = make_hook(hook_name, group);
      for (int i = 0; i < 6; ++i) {
        const auto mine = random_gradients(kShapes, 100 * i + group.rank());
        const auto expected = reduce(*plain, mine, 4);
        if (i == 3) {
          moved->rebuild();
          HookState state;
          moved->save(state);
          resumed->load(state);
        }
        expect_near(reduce(*moved, mine, i < 3 ? 2 : 11), expected, 1e-5);
        if (i >= 3) {
          const auto again = reduce(*resumed, mine, 11);
          expect_near(again, expected, 1e-5);
        }
      }
    });
  }
}

TEST(PowerSgd, ResumingIsBitIdentical) {
  for (const std::string name : {"powersgd", "batched_powersgd"}) {
    run_threads(2, [&](const Group& group) {
      const auto spec = name + ":rank=2,start=2";
      const auto hook = make_hook(spec, group);
      for (int i = 0; i < 4; ++i) {
        reduce(*hook, random_gradients(kShapes, 100 * i + group.rank()));
      }
      HookState state;
      hook->save(state);
      const auto resumed = make_hook(spec, group);
      resumed->load(state);
      for (int i = 4; i < 7; ++i) {
        const auto mine = random_gradients(kShapes, 100 * i + group.rank());
        const auto expected = reduce(*hook, mine);
        const auto got = reduce(*resumed, mine);
        for (std::size_t k = 0; k < got.size(); ++k) {
          EXPECT_TRUE(same_bits(got[k], expected[k])) << name << " " << k;
        }
      }
    });
  }
}

TEST(PowerSgd, DegenerateGradientsAreHarmless) {
  for (const std::string name : {"powersgd", "batched_powersgd"}) {
    for (const auto type : {torch::kFloat, torch::kHalf, torch::kBFloat16}) {
      run_threads(2, [&](const Group& group) {
        const auto hook = make_hook(name + ":rank=4,start=0", group);
        const std::vector<at::Tensor> inputs{
            torch::zeros({30, 40}),
            torch::full({30, 40}, 1e-7),
            random_tensor({30, 1}, 1).matmul(random_tensor({1, 40}, 2)),
            torch::zeros({30, 40}),
            random_tensor({30, 40}, 3),
            torch::eye(30, 40)};
        for (const auto& input : inputs) {
          const auto average = reduce(*hook, {{"w", input.to(type)}}).at(0);
          EXPECT_TRUE(average.isfinite().all().item<bool>()) << name;
          EXPECT_EQ(average.scalar_type(), type);
        }
      });
    }
  }
}

// A step that no rank takes is as if it had never been.
TEST(PowerSgd, ANonFiniteStepLeavesNoTrace) {
  for (const std::string name : {"powersgd", "batched_powersgd"}) {
    run_threads(2, [&](const Group& group) {
      const auto hook = make_hook(name + ":rank=2,start=0", group);
      const auto other = make_hook(name + ":rank=2,start=0", group);
      for (int i = 0; i < 6; ++i) {
        auto mine = random_tensor({30, 40}, 10 * i + group.rank());
        const auto expected = reduce(*other, {{"w", mine}}).at(0);
        if (i == 3) {
          auto broken = mine.clone();
          if (group.rank() == 1) {
            broken[7][9] = std::numeric_limits<float>::quiet_NaN();
          }
          const auto average = reduce(*hook, {{"w", broken}}).at(0);
          EXPECT_FALSE(average.isfinite().all().item<bool>());
        }
        const auto average = reduce(*hook, {{"w", mine}}).at(0);
        EXPECT_LE((average - expected).abs().max().item<float>(), 1e-5) << i;
      }
    });
  }
}

// What is not compressed keeps its precision.
TEST(PowerSgd, TheRestIsExact) {
  run_threads(2, [](const Group& group) {
    const auto hook = make_hook("powersgd:rank=2,start=0", group);
    const auto vector =
        random_tensor({100}, group.rank()).to(torch::kDouble) + 1e-12;
    const auto matrix = random_tensor({30, 40}, 9).to(torch::kDouble);
    const auto averages = reduce(*hook, {{"w", matrix}, {"b", vector}});
    const auto difference = averages[1] - test::exact_mean(group, vector);
    EXPECT_LE(difference.abs().max().item<double>(), 1e-15);
  });
}

// Channels last: element for element the same as contiguous.
TEST(PowerSgd, StridesAreTheParameters) {
  run_threads(2, [](const Group& group) {
    const auto hook = make_hook("powersgd:rank=2,start=0", group);
    const auto strided = make_hook("powersgd:rank=2,start=0", group);
    for (int i = 0; i < 3; ++i) {
      const auto mine = random_tensor({16, 8, 3, 3}, 10 * i + group.rank());
      const auto expected = reduce(*hook, {{"w", mine}}).at(0);
      const auto last = mine.contiguous(at::MemoryFormat::ChannelsLast);
      auto parameter = std::make_shared<const Parameter>(
          Parameter{"w", torch::zeros_like(last)});
      Bucket bucket(
          0, true, last.permute({0, 2, 3, 1}).reshape({-1}), {parameter});
      strided->reduce(bucket).wait();
      EXPECT_LE(
          (bucket.gradient(0) - expected).abs().max().item<float>(), 1e-5);
    }
  });
}

// Wire floats of models, without their weights: shapes are enough.
struct Sizes {
  std::int64_t first = 0;
  std::int64_t second = 0;
};
Sizes wire_floats(const Shapes& shapes, std::int64_t rank) {
  std::vector<std::shared_ptr<const Parameter>> parameters;
  std::int64_t elems = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto tensor = torch::empty(shapes[i], torch::kMeta);
    elems += tensor.numel();
    parameters.push_back(
        std::make_shared<const Parameter>(Parameter{concat("p", i), tensor}));
  }
  const Bucket bucket(0, true, torch::empty({elems}, torch::kMeta), parameters);
  const auto info = powersgd_options();
  const Options options(
      "powersgd",
      info,
      {{"rank", concat(rank)}, {"min_compression_rate", "1"}});
  const LowRank low_rank(
      bucket, PowerSgdOptions(options), LowRank::Matrices::kParameters);
  Sizes sizes{low_rank.first().numel(), 0};
  for (const auto& entry : low_rank.basis_entries()) {
    sizes.second += entry.elems;
  }
  return sizes;
}

TEST(PowerSgd, BytesAreThoseOfTheFactors) {
  const Shapes shapes{{200, 300}, {100}, {50, 80}};
  const auto floats = wire_floats(shapes, 4);
  EXPECT_EQ(floats.first, 4 * (200 + 50) + 100);
  EXPECT_EQ(floats.second, 4 * (300 + 80));
  run_threads(2, [&](const Group& group) {
    const auto hook = make_hook("powersgd:rank=4,start=0", group);
    reduce(*hook, random_gradients(shapes, group.rank()), 3);
    const auto before = group.bytes_sent().payload;
    reduce(*hook, random_gradients(shapes, group.rank()), 3);
    // Two ranks: a ring sends as many bytes as there are.
    EXPECT_EQ(
        group.bytes_sent().payload - before,
        4 * (floats.first + floats.second));
  });
}

// The paper's models and two others, against figures computed elsewhere.
TEST(PowerSgd, WireFloatsOfKnownModels) {
  const auto all = [](const Shapes& shapes) {
    std::vector<std::int64_t> result;
    for (const std::int64_t rank : {1, 2, 4}) {
      const auto floats = wire_floats(shapes, rank);
      result.push_back(floats.first + floats.second);
    }
    return result;
  };
  using Floats = std::vector<std::int64_t>;
  EXPECT_EQ(all(test::resnet18()), (Floats{45935, 82260, 154910}));
  EXPECT_EQ(all(test::resnet50()), (Floats{136611, 219102, 384084}));
  EXPECT_EQ(all(test::gpt2()), (Floats{321617, 521890, 922436}));
  EXPECT_EQ(all(test::lstm()), (Floats{93488, 142507, 240545}));
}

// The first all-reduce of a bucket waits for a rank that is no more.
TEST(PowerSgdProcesses, APeersDeathEndsTheFirstAllReduce) {
  for (const std::string name : {"powersgd", "batched_powersgd"}) {
    test::run_processes(
        3,
        [&](const Group& group) {
          const auto hook = make_hook(name + ":start=0", group);
          const auto mine = random_tensor({30, 40}, group.rank());
          reduce(*hook, {{"w", mine}});
          if (group.rank() == 2) {
            raise(SIGKILL);
          }
          EXPECT_ERROR(
              CommError,
              reduce(*hook, {{"w", mine}}),
              concat("rank ", group.rank()));
        },
        {.timeout = std::chrono::seconds(10), .may_die = {2}});
  }
}

TEST(PowerSgd, ComposesWithCasts) {
  run_threads(2, [](const Group& group) {
    for (const std::string cast : {"fp16", "bf16"}) {
      const auto hook = make_hook(cast + "(powersgd:rank=2,start=0)", group);
      const auto u = random_tensor({40, 2}, 1);
      const auto v = random_tensor({2, 70}, 2);
      const auto mine = u.matmul(v);
      const auto average = reduce(*hook, {{"w", mine}}).at(0);
      EXPECT_LE(
          (average.to(torch::kFloat) - mine).abs().max().item<float>(),
          cast == "fp16" ? 0.02 : 0.15);
    }
  });
}

TEST(PowerSgd, BadOptionsAreRefused) {
  const auto refused = [](const std::string& options, const std::string& why) {
    EXPECT_ERROR(Error, check_hook_spec("powersgd:" + options), why);
    EXPECT_ERROR(Error, check_hook_spec("batched_powersgd:" + options), why);
  };
  refused("rank=0", "expected integer from 1 to 1024");
  refused("min_compression_rate=0", "option 'min_compression_rate'");
  refused("epsilon=-1", "option 'epsilon'");
  refused("start=-1", "option 'start'");
  refused("ranks=1", "did you mean 'rank'");
}

TEST(PowerSgd, HasPyTorchsNames) {
  EXPECT_EQ(hook_spec(DDPCommHookType::POWER_SGD), "powersgd");
  EXPECT_EQ(hook_spec(DDPCommHookType::POWER_SGD_RANK2), "powersgd:rank=2");
  EXPECT_EQ(hook_spec(DDPCommHookType::BATCHED_POWER_SGD), "batched_powersgd");
  EXPECT_EQ(
      hook_spec(DDPCommHookType::BATCHED_POWER_SGD_RANK2),
      "batched_powersgd:rank=2");
}

}  // namespace
}  // namespace gradwire
