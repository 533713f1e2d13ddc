// fp16 and bf16 as hooks and as wrappers.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp.h"
#include "gradwire/hook/registry.h"
#include "tests/support/expect.h"
#include "tests/support/gradients.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using test::GivenGradients;
using test::run_threads;

// The average of one step, and what rank 0 sent.
std::pair<at::Tensor, std::int64_t> one_step(
    const std::string& hook, const std::function<at::Tensor(int)>& gradient) {
  at::Tensor result;
  std::int64_t sent = 0;
  run_threads(2, [&](const Group& group) {
    const auto mine = gradient(group.rank());
    auto net = std::make_shared<GivenGradients>(
        std::vector<std::int64_t>{mine.numel()});
    auto ddp = DistributedDataParallel(net, group, {.hook = hook});
    ddp->forward(GivenGradients::Gradients{mine}).backward();
    EXPECT_EQ(ddp->parameters()[0].grad().scalar_type(), torch::kFloat);
    if (group.rank() == 0) {
      result = ddp->parameters()[0].grad();
      sent = ddp->stats().last.sent.total();
    }
  });
  return {result, sent};
}

// The sum is taken in fp32: only what one rank brings must fit into a half.
TEST(CastHooks, SumsDoNotOverflow) {
  const auto [average, sent] =
      one_step("fp16", [](int) { return torch::full({100}, 65504.0); });
  EXPECT_TRUE(average.eq(65504).all().item<bool>());
}

TEST(CastHooks, RoundOnceToNearestEven) {
  // Halfway between two halves: 1 + 2^-11 goes down, 1 + 3 * 2^-11 up.
  const auto values = torch::tensor({1 + 0x1p-11, 1 + 3 * 0x1p-11});
  const auto [average, sent] =
      one_step("fp16", [&](int) { return values.to(torch::kFloat); });
  EXPECT_EQ(average[0].item<float>(), 1.0f);
  EXPECT_EQ(average[1].item<float>(), 1.0f + 2 * 0x1p-10f);
}

TEST(CastHooks, WrapOtherHooks) {
  const auto random = [](int rank) {
    return test::random_tensor({10000}, rank);
  };
  const auto exact = (random(0) + random(1)) / 2;
  const auto [plain, plain_bytes] = one_step("allreduce", random);
  for (const std::string hook :
       {"fp16(allreduce)", "bf16(allreduce)", "fp16(fp16)", "bf16(bf16)"}) {
    const auto [average, sent] = one_step(hook, random);
    EXPECT_TRUE(torch::allclose(average, exact, 0, 0.03)) << hook;
    EXPECT_FALSE(torch::equal(average, plain)) << hook;
    EXPECT_LT(static_cast<double>(sent), 0.51 * plain_bytes) << hook;
  }
  const auto [quantised, sent] = one_step("bf16(int8)", random);
  EXPECT_TRUE(torch::allclose(quantised, exact, 0, 0.1));
  EXPECT_LT(static_cast<double>(sent), 0.26 * plain_bytes);
}

// A parameter that only others used has its gradient from the result: in the
// parameter's type, so that more can be added to it.
TEST(CastHooks, GradientsOfUnusedParametersHaveTheirType) {
  for (const std::string hook : {"fp16(int8)", "bf16(allreduce)"}) {
    run_threads(2, [&](const Group& group) {
      struct Net : torch::nn::Module {
        Net() {
          for (int i = 0; i < 3; ++i) {
            parts.push_back(
                register_module(concat(i), torch::nn::Linear(16, 16)));
          }
        }
        at::Tensor forward(const at::Tensor& x, int which) {
          return parts.at(which)->forward(x);
        }
        std::vector<torch::nn::Linear> parts;
      };
      auto ddp = DistributedDataParallel(
          std::make_shared<Net>(),
          group,
          {.hook = hook, .find_unused_parameters = true});
      for (int step = 0; step < 4; ++step) {
        ddp->forward(torch::ones({2, 16}), (group.rank() + step) % 3)
            .sum()
            .backward();
        for (const auto& parameter : ddp->parameters()) {
          if (parameter.grad().defined()) {
            EXPECT_EQ(parameter.grad().scalar_type(), torch::kFloat) << hook;
          }
        }
      }
    });
  }
}

TEST(CastHooks, ComplexParametersUnderPowerSgd) {
  struct Net : torch::nn::Module {
    Net() {
      w = register_parameter("w", torch::zeros({20, 30}, torch::kComplexFloat));
      v = register_parameter("v", torch::zeros({40, 30}));
    }
    at::Tensor forward(const at::Tensor& x) {
      return torch::real(w * x).sum() + v.sum();
    }
    at::Tensor w;
    at::Tensor v;
  };
  run_threads(2, [](const Group& group) {
    const auto mine = torch::complex(
        test::random_tensor({20, 30}, group.rank()),
        test::random_tensor({20, 30}, 5 + group.rank()));
    for (const std::string hook : {"none", "bf16(powersgd:rank=2,start=0)"}) {
      auto ddp = DistributedDataParallel(
          std::make_shared<Net>(), group, {.hook = hook});
      ddp->forward(mine).backward();
      const auto exact = test::exact_mean(group, torch::view_as_real(mine));
      EXPECT_TRUE(torch::allclose(
          torch::view_as_real(ddp->module()->w.grad().conj().resolve_conj()),
          exact,
          0,
          0.02))
          << hook;
    }
  });
}

TEST(CastHooks, AWrapperHasNoOptionsOfItsOwn) {
  EXPECT_ERROR(
      Error,
      check_hook_spec("fp16(allreduce):ef=on"),
      "takes no options of its own");
  EXPECT_ERROR(
      Error, check_hook_spec("int8(allreduce)"), "takes no other hook");
  EXPECT_EQ(
      check_hook_spec("bf16( int8 : block = 64 )"), "bf16(int8:block=64)");
}

}  // namespace
}  // namespace gradwire
