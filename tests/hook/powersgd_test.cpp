// PowerSGD's arithmetic: what is sent, what is owed, what is harmless.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/comm_hook_type.h"
#include "gradwire/hook/powersgd_options.h"
#include "gradwire/hook/registry.h"
#include "tests/hook/named_gradients.h"
#include "tests/hook/powersgd_reference.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::kMixedShapes;
using test::NamedGradients;
using test::PowerSgdReference;
using test::random_tensor;
using test::reduce;
using test::run_threads;

const std::vector<std::string> kBoth{"powersgd", "batched_powersgd"};

void expect_the_algorithm(
    int world,
    const std::string& options,
    const PowerSgdReference::Config& config) {
  run_threads(world, [&](const Group& group) {
    SCOPED_TRACE(options);
    const auto hook = make_hook("powersgd:start=0," + options, group);
    PowerSgdReference reference(group, config);
    // Without a warm start there is no order of directions to be mistaken.
    const double decay = config.warm_start ? 0.02 : 0.2;
    for (int i = 0; i < 20; ++i) {
      const auto mine =
          test::structured_gradients(kMixedShapes, i, group.rank(), decay);
      const auto averages = reduce(*hook, mine);
      test::expect_near(averages, reference.step(mine), 1e-5);
      for (const auto& average : averages) {
        EXPECT_TRUE(test::same_on_all_ranks(group, average));
      }
    }
  });
}

TEST(PowerSgd, EqualsTheAlgorithm) {
  for (const int world : {1, 2, 3, 4}) {
    expect_the_algorithm(world, "rank=2", {.rank = 2});
    expect_the_algorithm(
        world, "rank=2,ef=off", {.rank = 2, .error_feedback = false});
    // Four columns: two that are drawn in every step will once be nearly at
    // right angles to what matters, and show nothing but rounding.
    expect_the_algorithm(
        world,
        "rank=4,warm_start=off,min_compression_rate=1",
        {.rank = 4, .warm_start = false, .min_compression_rate = 1});
    expect_the_algorithm(world, "rank=2,batch=off", {.rank = 2});
  }
  expect_the_algorithm(2, "rank=1", {.rank = 1});
  expect_the_algorithm(
      2,
      "rank=4,ef=off,warm_start=off",
      {.rank = 4, .error_feedback = false, .warm_start = false});
  expect_the_algorithm(
      3,
      "rank=2,min_compression_rate=1.1",
      {.rank = 2, .min_compression_rate = 1.1});
}

TEST(PowerSgd, OptionsBeyondTheAlgorithmDoWhatTheySay) {
  for (const int world : {1, 2, 3}) {
    expect_the_algorithm(
        world, "rank=2,iterations=3", {.rank = 2, .iterations = 3});
    expect_the_algorithm(
        world, "rank=2,alternate=on", {.rank = 2, .alternate = true});
    expect_the_algorithm(world, "rank=2,refresh=5", {.rank = 2, .refresh = 5});
  }
}

// A bucket that is structured as a square, cut into parameters.
NamedGradients square_in_parts(int step, int rank) {
  const auto flat =
      test::structured({30, 30}, 7, step, rank).flatten().slice(0, 0, 890);
  return {
      {"a", flat.slice(0, 0, 400)},
      {"b", flat.slice(0, 400, 800).view({20, 20})},
      {"c", flat.slice(0, 800)}};
}

TEST(BatchedPowerSgd, EqualsTheAlgorithm) {
  for (const int world : {1, 2, 3, 4}) {
    for (const bool feedback : {true, false}) {
      run_threads(world, [&](const Group& group) {
        const auto hook = make_hook(
            concat(
                "batched_powersgd:rank=2,start=0", feedback ? "" : ",ef=off"),
            group);
        PowerSgdReference reference(
            group, {.rank = 2, .error_feedback = feedback});
        for (int i = 0; i < 20; ++i) {
          const auto mine = square_in_parts(i, group.rank());
          test::expect_near(
              reduce(*hook, mine), reference.batched_step(mine, 4), 1e-5);
        }
      });
    }
  }
}

// In full at first, then as well as the rank allows once the subspace is found.
TEST(BatchedPowerSgd, WorksAfterItsStart) {
  run_threads(2, [](const Group& group) {
    const auto hook =
        make_hook("batched_powersgd:rank=4,start=3,ef=off", group);
    for (int i = 0; i < 8; ++i) {
      const auto mine = square_in_parts(i, group.rank());
      const auto averages = reduce(*hook, mine);
      for (std::size_t k = 0; k < mine.size(); ++k) {
        const auto exact = test::exact_mean(group, mine[k].gradient);
        const auto off = (averages[k] - exact).abs().max().item<float>();
        if (i < 3) {
          EXPECT_LE(off, 1e-6);
        } else if (i > 5) {
          // Three directions and the last row, which is cut short; noise is
          // left.
          EXPECT_LE(off, 1e-3);
          EXPECT_GT(off, 1e-6);
        }
      }
    }
  });
}

TEST(PowerSgd, RecoversLowRankExactly) {
  for (const std::string options :
       {"", ",iterations=2", ",ef=off", ",memory=bf16"}) {
    run_threads(3, [&](const Group& group) {
      const auto hook = make_hook("powersgd:rank=3,start=0" + options, group);
      // Rank 1 on every rank, 3 together.
      const auto u = random_tensor({40, 1}, 10 + group.rank());
      const auto v = random_tensor({1, 70}, 20 + group.rank());
      const auto mine = u.matmul(v);
      for (int i = 0; i < 3; ++i) {
        const auto average = reduce(*hook, {{"w", mine}}).at(0);
        const auto expected = test::exact_mean(group, mine);
        // What each rank loses lies outside of what it may send alone, so the
        // average is right though residuals are not zero.
        EXPECT_LE(
            (average - expected).abs().max().item<float>(),
            options == ",memory=bf16" ? 0.03 : 1e-5);
      }
    });
  }
}

// What one rank sent and what it keeps is what it brought.
TEST(PowerSgd, SentAndResidualAreTheGradient) {
  for (const auto& name : kBoth) {
    run_threads(1, [&](const Group& group) {
      const auto hook = make_hook(name + ":rank=2,start=0", group);
      const auto mine = random_tensor({30, 40}, 5);
      const auto sent = reduce(*hook, {{"w", mine}}).at(0);
      HookState state;
      hook->save(state);
      const auto owed = state.residuals.at("w").view({30, 40});
      EXPECT_LE((sent + owed - mine).abs().max().item<float>(), 1e-6);
      EXPECT_GT(owed.abs().max().item<float>(), 0.1);
    });
  }
}

TEST(PowerSgd, WhatWasNotSentIsOwed) {
  for (const std::string spec :
       {"powersgd:rank=2,start=0",
        "batched_powersgd:rank=2,start=0",
        "powersgd:rank=2,start=0,alternate=on",
        "powersgd:rank=2,start=0,iterations=2"}) {
    run_threads(2, [&](const Group& group) {
      const auto hook = make_hook(spec, group);
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
      EXPECT_LE(difference.abs().max().item<double>(), 1e-4) << spec;
      EXPECT_GT(owed.abs().max().item<double>(), 0.1);
    });
  }
}

// A narrow memory forgets what it cannot hold, and no more than that.
TEST(PowerSgd, MemoryMayBeNarrow) {
  for (const auto& [memory, rounding] :
       std::vector<std::pair<std::string, double>>{
           {"bf16", 1.0 / 256}, {"fp16", 1.0 / 2048}}) {
    run_threads(1, [&](const Group& group) {
      const auto hook =
          make_hook("powersgd:rank=2,start=0,memory=" + memory, group);
      const auto mine = random_tensor({30, 40}, 5);
      const auto sent = reduce(*hook, {{"w", mine}}).at(0);
      HookState state;
      hook->save(state);
      const auto owed = state.residuals.at("w").view({30, 40});
      const auto lost = (sent + owed - mine).abs();
      EXPECT_LE((lost / (mine - sent).abs()).max().item<double>(), rounding);
      EXPECT_GT(lost.max().item<double>(), 1e-5);
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

TEST(PowerSgd, DegenerateGradientsAreHarmless) {
  for (const std::string options :
       {"", ",epsilon=1e-8", ",alternate=on", ",iterations=2"}) {
    for (const auto& name : kBoth) {
      for (const auto type : {torch::kFloat, torch::kHalf, torch::kBFloat16}) {
        run_threads(2, [&](const Group& group) {
          const auto hook =
              make_hook(name + ":rank=4,start=0" + options, group);
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
}

TEST(PowerSgd, AnyRankIsRankEnough) {
  run_threads(2, [](const Group& group) {
    const auto hook = make_hook(
        "powersgd:rank=100,start=0,min_compression_rate=0.001", group);
    const auto mine = test::random_gradients(kMixedShapes, group.rank());
    const auto averages = reduce(*hook, mine);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (mine[i].gradient.numel() > 0) {
        const auto exact = test::exact_mean(group, mine[i].gradient);
        EXPECT_LE((averages[i] - exact).abs().max().item<float>(), 1e-5) << i;
      }
    }
  });
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
      {
        const test::HookStep step(*strided);
        strided->reduce(bucket).wait();
      }
      EXPECT_LE(
          (bucket.gradient(0) - expected).abs().max().item<float>(), 1e-5);
    }
  });
}

TEST(PowerSgd, MovesNobodysGenerator) {
  for (const auto& name : kBoth) {
    run_threads(1, [&](const Group& group) {
      const auto hook = make_hook(name + ":rank=2,start=0", group);
      torch::manual_seed(3);
      const auto expected = torch::rand({1}).item<float>();
      torch::manual_seed(3);
      reduce(*hook, {{"w", random_tensor({30, 40}, 1)}});
      EXPECT_EQ(torch::rand({1}).item<float>(), expected);
    });
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
  refused("iterations=0", "expected integer from 1 to 16");
  refused("memory=int8", "expected one of fp32, bf16, fp16");
  refused("ranks=1", "did you mean 'rank'");
  refused("alternate=on,warm_start=off", "expected warm_start=on");
  refused("alternate=on,iterations=2", "expected iterations=1");
  refused("alternate=on,epsilon=1e-8", "expected epsilon=0");
  EXPECT_ERROR(
      Error, check_hook_spec("batched_powersgd:batch=off"), "unknown option");
}

TEST(PowerSgd, OptionsOfProgramsAreSpecs) {
  EXPECT_EQ(PowerSgdOptions{}.spec(), "powersgd");
  const PowerSgdOptions all{
      .rank = 4,
      .start = 0,
      .min_compression_rate = 1.1,
      .ef = false,
      .epsilon = 1e-8,
      .memory = "bf16"};
  EXPECT_EQ(
      all.spec("batched_powersgd"),
      "batched_powersgd:rank=4,start=0,min_compression_rate=1.1,ef=off,"
      "epsilon=1e-08,memory=bf16");
  EXPECT_NO_THROW(check_hook_spec(all.spec()));
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
