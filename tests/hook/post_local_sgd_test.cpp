// Gradients that are averaged over all ranks at first, then within subgroups.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "gradwire/hook/registry.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/gradients.h"
#include "tests/support/hook_step.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::GivenGradients;
using test::random_tensor;
using test::run_threads;
using test::same_bits;

const test::RankOptions kNoSockets{.transport = "local"};

at::Tensor gradient_of(int step, int rank) {
  return random_tensor({700}, 1000 + 10 * step + rank);
}

// One bucket through the hook.
at::Tensor reduce_one(Hook& hook, const at::Tensor& gradient) {
  const test::HookStep step(hook);
  Bucket bucket(
      0,
      true,
      gradient.clone(),
      {std::make_shared<const Parameter>(
          Parameter{"p", torch::zeros_like(gradient)})});
  return hook.reduce(bucket).wait().clone();
}

// As the exact average does it: each scaled, then added up in rank order.
at::Tensor mean_of_block(int step, int first, int count) {
  auto sum = gradient_of(step, first).mul_(1.0 / count);
  for (int i = 1; i < count; ++i) {
    sum += gradient_of(step, first + i).mul_(1.0 / count);
  }
  return sum;
}

TEST(PostLocalSgdHook, AveragesOverAllAndThenWithinSubgroups) {
  run_threads(
      4,
      [](const Group& group) {
        const auto hook = make_hook("post_local_sgd:start=2,subgroup=2", group);
        const int first = group.rank() / 2 * 2;
        for (int step = 0; step < 5; ++step) {
          const auto got = reduce_one(*hook, gradient_of(step, group.rank()));
          const auto expected = step < 2 ? mean_of_block(step, 0, 4)
                                         : mean_of_block(step, first, 2);
          EXPECT_TRUE(torch::allclose(got, expected, 1e-6, 1e-7)) << step;
        }
        // Rank order of two is no question.
        const auto got = reduce_one(*hook, gradient_of(5, group.rank()));
        EXPECT_TRUE(same_bits(got, mean_of_block(5, first, 2)));
      },
      kNoSockets);
}

// Steps that fail are none, whatever is in them.
TEST(PostLocalSgdHook, FailedStepsAreNotCounted) {
  run_threads(
      2,
      [](const Group& group) {
        const auto hook = make_hook("post_local_sgd:start=1,subgroup=1", group);
        Step failed;
        hook->begin_step(failed);
        failed.outcome = Step::Outcome::kFailed;
        hook->end_step(failed);
        const auto mine = gradient_of(0, group.rank());
        EXPECT_TRUE(same_bits(reduce_one(*hook, mine), mean_of_block(0, 0, 2)));
        EXPECT_TRUE(same_bits(reduce_one(*hook, mine), mine));
      },
      kNoSockets);
}

TEST(PostLocalSgdHook, ARankByItselfSendsNothing) {
  run_threads(2, [](const Group& group) {
    const auto net =
        std::make_shared<GivenGradients>(std::vector<std::int64_t>{300, 50});
    auto ddp = DistributedDataParallel(
        net, group, {.hook = "post_local_sgd(int8):start=2,subgroup=1"});
    for (int step = 0; step < 5; ++step) {
      const auto mine = net->random(10 * step + group.rank());
      ddp->zero_grad();
      ddp->forward(mine).backward();
      const Step last = ddp->stats().last;
      if (step < 2) {
        EXPECT_GT(last.sent.payload, 0);
      } else {
        EXPECT_EQ(last.sent.total(), 0);
        EXPECT_TRUE(same_bits(net->flat_gradients(), net->flat(mine)));
      }
    }
  });
}

// Inside of the subgroup it is the inner hook over the subgroup.
TEST(PostLocalSgdHook, IsItsInnerHookInTheSubgroup) {
  run_threads(4, [](const Group& group) {
    const auto hook = make_hook("post_local_sgd(int8):subgroup=2", group);
    for (const int first : {0, 2}) {
      const Group pair = group.subgroup({first, first + 1});
      if (!pair) {
        continue;
      }
      const auto plain = make_hook("int8", pair);
      for (int step = 0; step < 3; ++step) {
        const auto mine = gradient_of(step, group.rank());
        EXPECT_TRUE(
            same_bits(reduce_one(*hook, mine), reduce_one(*plain, mine)))
            << step;
      }
    }
  });
}

// What averages over all ranks have lost is paid to the subgroup.
TEST(PostLocalSgdHook, HandsItsResidualsToTheSubgroup) {
  run_threads(
      4,
      [](const Group& group) {
        const auto hook =
            make_hook("post_local_sgd(int4):start=1,subgroup=2", group);
        const auto mine = gradient_of(0, group.rank());
        const auto all = reduce_one(*hook, mine);
        HookState state;
        hook->save(state);
        const auto owed = state.residuals.at("p");
        EXPECT_GT(owed.abs().max().item<float>(), 0);
        auto lost = (mine - all).to(torch::kDouble);
        auto sum = owed.to(torch::kDouble);
        group.all_reduce(lost).wait();
        group.all_reduce(sum).wait();
        EXPECT_LE((lost - sum).abs().max().item<double>(), 1e-5);
        // Nothing new: what comes out is what was owed, but for what is lost
        // again.
        const auto near = reduce_one(*hook, torch::zeros_like(mine));
        HookState after;
        hook->save(after);
        const auto block = [&](const at::Tensor& value) {
          const auto all_ranks = test::gather(group, value);
          const auto first = static_cast<std::size_t>(group.rank() / 2 * 2);
          return all_ranks[first] + all_ranks[first + 1];
        };
        const auto paid = near * 2 + block(after.residuals.at("p"));
        EXPECT_LE((paid - block(owed)).abs().max().item<float>(), 1e-5);
      },
      kNoSockets);
}

TEST(PostLocalSgdHook, GoesOnWhereItWasSaved) {
  for (const std::string inner : {"", "(int4)", "(powersgd:start=0)"}) {
    for (const int steps : {1, 3}) {
      run_threads(
          4,
          [&](const Group& group) {
            const std::string spec =
                concat("post_local_sgd", inner, ":start=2,subgroup=2");
            const auto hook = make_hook(spec, group);
            for (int step = 0; step < steps; ++step) {
              reduce_one(*hook, gradient_of(step, group.rank()));
            }
            HookState state;
            hook->save(state);
            EXPECT_EQ(state.numbers.at("post_local_sgd_steps"), steps);
            const auto resumed = make_hook(spec, group);
            const Parameters parameters{std::make_shared<const Parameter>(
                Parameter{"p", torch::zeros({700})})};
            resumed->check(state, parameters);
            resumed->load(state);
            for (int step = steps; step < steps + 3; ++step) {
              const auto mine = gradient_of(step, group.rank());
              EXPECT_TRUE(same_bits(
                  reduce_one(*resumed, mine), reduce_one(*hook, mine)))
                  << spec << " " << step;
            }
          },
          kNoSockets);
    }
  }
}

// Subgroups have remembered different things, and each gets its own back.
TEST(PostLocalSgdHook, FilesHaveWhatEachSubgroupRemembers) {
  const test::TemporaryFolder folder;
  run_threads(
      4,
      [&](const Group& group) {
        const auto make = [&] {
          auto net = std::make_shared<torch::nn::LinearImpl>(40, 30);
          test::fill_parameters(*net, 3);
          return DistributedDataParallel(
              net,
              group,
              {.hook = "post_local_sgd(powersgd:start=0):start=1,subgroup=2"});
        };
        const auto step = [&](auto& ddp, int number) {
          const auto input = random_tensor({8, 40}, 10 * number + group.rank());
          ddp->zero_grad();
          ddp->forward(input).square().sum().backward();
          return ddp->parameters()[0].grad().clone();
        };
        auto ddp = make();
        for (int i = 0; i < 3; ++i) {
          step(ddp, i);
        }
        ddp->save_hook_state(folder.path());
        auto resumed = make();
        resumed->load_hook_state(folder.path());
        for (int i = 3; i < 6; ++i) {
          EXPECT_TRUE(same_bits(step(resumed, i), step(ddp, i))) << i;
        }
      },
      kNoSockets);
}

TEST(PostLocalSgdHook, RefusesStatesThatAreNone) {
  run_threads(
      2,
      [](const Group& group) {
        const auto hook =
            make_hook("post_local_sgd(int8):start=3,subgroup=all", group);
        EXPECT_ERROR(
            Error,
            hook->check({}, {}),
            "'post_local_sgd' has no number 'post_local_sgd_steps'");
        HookState state;
        state.numbers["post_local_sgd_steps"] = -1;
        EXPECT_ERROR(Error, hook->check(state, {}), "of 0 or more");
        state.numbers["post_local_sgd_steps"] = 1;
        EXPECT_ERROR(
            Error,
            hook->check(state, {}),
            "the state of 'int8' has no number 'step'");
      },
      kNoSockets);
}

TEST(PostLocalSgdHook, BadNumbersAreErrorsOnEveryRank) {
  EXPECT_ERROR(
      Error,
      HookSpec("post_local_sgd:start=-1"),
      "start",
      "integer of at least 0");
  EXPECT_ERROR(Error, HookSpec("post_local_sgd:subgroup=0"), "subgroup");
  EXPECT_ERROR(Error, HookSpec("post_local_sgd:stat=2"), "start");
  run_threads(
      4,
      [](const Group& group) {
        EXPECT_ERROR(
            Error,
            make_hook("post_local_sgd:subgroup=3", group),
            "subgroup is 3 for 4 ranks, expected a number that divides them");
        EXPECT_ERROR(
            Error,
            make_hook(
                concat("post_local_sgd:subgroup=", group.rank() < 2 ? 1 : 2),
                group),
            "ranks do not agree on subgroup");
      },
      kNoSockets);
}

TEST(PostLocalSgdHook, IsFoundInASpec) {
  const HookSpec spec("bf16(post_local_sgd:start=7)");
  ASSERT_NE(spec.find("post_local_sgd"), nullptr);
  EXPECT_EQ(spec.find("post_local_sgd")->integer("start"), 7);
  EXPECT_EQ(HookSpec("int8").find("post_local_sgd"), nullptr);
  EXPECT_EQ(HookSpec("none").find("post_local_sgd"), nullptr);
}

}  // namespace
}  // namespace gradwire
