// What PowerSGD remembers from step to step, and what it forgets.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "gradwire/hook/registry.h"
#include "tests/hook/named_gradients.h"
#include "tests/support/command.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::kMixedShapes;
using test::random_tensor;
using test::reduce;
using test::run_threads;
using test::same_bits;

const std::vector<std::string> kAll{
    "powersgd:rank=2,start=0",
    "batched_powersgd:rank=2,start=0",
    "powersgd:rank=2,start=0,alternate=on",
    "powersgd:rank=2,start=0,refresh=3",
    "powersgd:rank=2,start=2,memory=bf16"};

TEST(PowerSgdMemory, FollowsParametersNotBuckets) {
  run_threads(2, [&](const Group& group) {
    const std::string spec = "powersgd:rank=2,start=0";
    const auto plain = make_hook(spec, group);
    const auto moved = make_hook(spec, group);
    const auto unannounced = make_hook(spec, group);
    const auto resumed = make_hook(spec, group);
    for (int i = 0; i < 6; ++i) {
      const auto mine =
          test::random_gradients(kMixedShapes, 100 * i + group.rank());
      const auto expected = reduce(*plain, mine, 4);
      if (i == 3) {
        moved->rebuild();
        HookState state;
        moved->save(state);
        resumed->load(state);
      }
      test::expect_near(reduce(*moved, mine, i < 3 ? 2 : 11), expected, 1e-5);
      test::expect_near(
          reduce(*unannounced, mine, i < 3 ? 3 : 2), expected, 1e-5);
      if (i >= 3) {
        test::expect_near(reduce(*resumed, mine, 11), expected, 1e-5);
      }
    }
  });
}

TEST(PowerSgdMemory, ResumingIsBitIdentical) {
  for (const std::string& spec : kAll) {
    SCOPED_TRACE(spec);
    run_threads(2, [&](const Group& group) {
      const auto gradients = [&](int step) {
        return test::random_gradients(kMixedShapes, 100 * step + group.rank());
      };
      const auto hook = make_hook(spec, group);
      for (int i = 0; i < 5; ++i) {
        reduce(*hook, gradients(i));
      }
      HookState state;
      hook->save(state);
      const auto resumed = make_hook(spec, group);
      resumed->load(state);
      for (int i = 5; i < 9; ++i) {
        const auto expected = reduce(*hook, gradients(i));
        const auto got = reduce(*resumed, gradients(i));
        for (std::size_t k = 0; k < got.size(); ++k) {
          EXPECT_TRUE(same_bits(got[k], expected[k])) << i << " " << k;
        }
      }
    });
  }
}

// A step that no rank takes leaves memory as it was, whatever was in it.
TEST(PowerSgdMemory, SkippedStepsAreForgotten) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::string& spec : kAll) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), inf}) {
      SCOPED_TRACE(spec);
      run_threads(2, [&](const Group& group) {
        const auto hook = make_hook(spec, group);
        const auto other = make_hook(spec, group);
        for (int i = 0; i < 6; ++i) {
          const auto mine = random_tensor({30, 40}, 10 * i + group.rank());
          const auto expected = reduce(*other, {{"w", mine}}).at(0);
          if (i == 4) {
            auto broken = mine.clone();
            if (group.rank() == 1) {
              broken[7][9] = bad;
            }
            const auto average = reduce(*hook, {{"w", broken}}).at(0);
            EXPECT_FALSE(average.isfinite().all().item<bool>());
          }
          const auto average = reduce(*hook, {{"w", mine}}).at(0);
          // Columns that are drawn depend on the number of the step.
          if (i < 4 || spec.find("refresh") == std::string::npos) {
            EXPECT_LE((average - expected).abs().max().item<float>(), 1e-5)
                << i;
          }
          EXPECT_TRUE(average.isfinite().all().item<bool>());
        }
      });
    }
  }
}

// The product is too large for a half, though P and Q are not.
TEST(PowerSgdMemory, OverflowInTheReconstructionIsAnotherSkippedStep) {
  run_threads(1, [](const Group& group) {
    const auto hook = make_hook("powersgd:rank=1,start=0", group);
    const auto small = random_tensor({30, 40}, 1).to(torch::kHalf);
    reduce(*hook, {{"w", small}});
    HookState before;
    hook->save(before);
    // Rank 2: what is sent of it is larger than the largest element.
    auto large = torch::zeros({30, 40});
    large.fill_(60000).triu_();
    const auto average = reduce(*hook, {{"w", large.to(torch::kHalf)}}).at(0);
    HookState after;
    hook->save(after);
    ASSERT_FALSE(average.isfinite().all().item<bool>());
    EXPECT_TRUE(same_bits(before.residuals.at("w"), after.residuals.at("w")));
    EXPECT_TRUE(same_bits(before.shared.at("w"), after.shared.at("w")));
  });
}

// Larger than a narrow memory holds: it forgets, and training goes on.
TEST(PowerSgdMemory, LargeResidualsDoNotPoisonANarrowMemory) {
  run_threads(1, [](const Group& group) {
    const auto hook = make_hook("powersgd:rank=1,start=0,memory=fp16", group);
    reduce(*hook, {{"w", 1e6 * random_tensor({30, 40}, 1)}});
    for (int i = 0; i < 3; ++i) {
      const auto average =
          reduce(*hook, {{"w", random_tensor({30, 40}, 2)}}).at(0);
      EXPECT_TRUE(average.isfinite().all().item<bool>());
    }
  });
}

// The bucket ends before the square's last row begins.
TEST(PowerSgdMemory, ABucketMayLeaveTheLastRowEmpty) {
  constexpr std::int64_t kElems = 570 * 571 - 100;
  for (const std::string options : {"", ",memory=bf16"}) {
    run_threads(1, [&](const Group& group) {
      const auto hook =
          make_hook("batched_powersgd:rank=2,start=0" + options, group);
      for (const auto type : {torch::kFloat, torch::kBFloat16}) {
        const auto mine = random_tensor({kElems}, 1).to(type);
        const auto sent = reduce(*hook, {{"w", mine}}).at(0);
        EXPECT_TRUE(sent.isfinite().all().item<bool>());
        HookState state;
        hook->save(state);
        EXPECT_EQ(state.residuals.at("w").numel(), kElems);
      }
    });
  }
}

// Through DDP, where a resumed one begins with other buckets.
TEST(PowerSgdMemory, AResumedDdpIsBitIdentical) {
  for (const std::string& spec : kAll) {
    const test::TemporaryFolder folder;
    run_threads(2, [&](const Group& group) {
      SCOPED_TRACE(spec);
      const auto make = [&] {
        torch::nn::Sequential net(
            torch::nn::Linear(40, 60),
            torch::nn::Tanh(),
            torch::nn::Linear(60, 60),
            torch::nn::Linear(60, 30));
        test::fill_parameters(*net, 3);
        return DistributedDataParallel(
            net,
            group,
            {.hook = spec,
             .bucket_cap_mb = 0.01,
             .first_bucket_cap_mb = 0.001});
      };
      const auto step = [&](auto& ddp, int i) {
        ddp->zero_grad();
        const auto input = random_tensor({16, 40}, 10 * i + group.rank());
        ddp->forward(input).square().mean().backward();
      };
      auto ddp = make();
      for (int i = 0; i < 5; ++i) {
        step(ddp, i);
      }
      ddp->save_hook_state(folder.path());
      auto resumed = make();
      resumed->load_hook_state(folder.path());
      for (int i = 5; i < 8; ++i) {
        step(ddp, i);
        step(resumed, i);
        for (std::size_t k = 0; k < ddp->parameters().size(); ++k) {
          EXPECT_TRUE(same_bits(
              ddp->parameters()[k].grad(), resumed->parameters()[k].grad()))
              << i << " " << k;
        }
      }
    });
  }
}

// Saving is not an event: what comes next is the same with or without.
TEST(PowerSgdMemory, SavingChangesNothing) {
  for (const std::string& spec : kAll) {
    run_threads(2, [&](const Group& group) {
      const auto saved = make_hook(spec, group);
      const auto other = make_hook(spec, group);
      for (int i = 0; i < 5; ++i) {
        const auto mine =
            test::random_gradients(kMixedShapes, 100 * i + group.rank());
        const auto got = reduce(*saved, mine);
        const auto expected = reduce(*other, mine);
        for (std::size_t k = 0; k < got.size(); ++k) {
          EXPECT_TRUE(same_bits(got[k], expected[k])) << spec << " " << k;
        }
        HookState state;
        saved->save(state);
      }
    });
  }
}

}  // namespace
}  // namespace gradwire
