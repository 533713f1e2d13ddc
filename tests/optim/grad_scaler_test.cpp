#include "gradwire/optim/grad_scaler.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "gradwire/ddp/ddp.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::run_threads;

constexpr float kInf = std::numeric_limits<float>::infinity();

at::Tensor parameter_with(const at::Tensor& gradient) {
  auto parameter = torch::zeros_like(gradient, torch::requires_grad());
  parameter.mutable_grad() = gradient;
  return parameter;
}

// Against the function that PyTorch's own scaler is made of.
TEST(GradScaler, ScaleFollowsTheRuleOfTorchAmp) {
  GradScaler scaler(
      {.init_scale = 3, .growth_factor = 1.7, .growth_interval = 3});
  auto scale = torch::full({1}, 3.0f);
  auto tracker = torch::zeros({1}, torch::kInt);
  const auto random = test::random_tensor({200}, 4);
  for (int i = 0; i < 200; ++i) {
    const bool finite = random[i].item<float>() < 1;
    scaler.note(finite);
    scaler.update();
    at::_amp_update_scale_(
        scale, tracker, torch::full({1}, finite ? 0.0f : 1.0f), 1.7, 0.5, 3);
    ASSERT_EQ(scaler.scale(), scale.item<float>()) << "step " << i;
    ASSERT_EQ(scaler.state().finite_steps, tracker.item<int>());
  }
}

TEST(GradScaler, TheScaleStaysANumber) {
  GradScaler up({.init_scale = 2e38, .growth_interval = 1});
  up.note(true);
  up.update();
  EXPECT_EQ(up.scale(), static_cast<double>(2e38f));
  GradScaler down({.init_scale = 1e-37, .backoff_factor = 1e-3});
  for (int i = 0; i < 4; ++i) {
    down.note(false);
    down.update();
  }
  EXPECT_GT(down.scale(), 0);
}

TEST(GradScaler, GradientsOfEveryKindAreDividedOnce) {
  GradScaler scaler({.init_scale = 8});
  const auto values = torch::tensor({8.0f, -16.0f});
  const auto dense = parameter_with(values.clone());
  const auto wide = parameter_with(values.to(torch::kDouble));
  const auto narrow = parameter_with(values.to(torch::kBFloat16));
  const auto complex = parameter_with(torch::complex(values, 2 * values));
  const auto sparse = parameter_with(
      torch::sparse_coo_tensor(torch::tensor({{1, 3}}), values.clone(), {5}));
  const auto none = torch::zeros({2}, torch::requires_grad());
  torch::optim::SGD sgd({dense, wide, narrow, complex, sparse, none, dense}, 1);
  scaler.unscale_(sgd);
  const auto expected = torch::tensor({1.0f, -2.0f});
  EXPECT_TRUE(torch::equal(dense.grad(), expected));
  EXPECT_TRUE(torch::equal(wide.grad(), expected.to(torch::kDouble)));
  EXPECT_TRUE(torch::equal(narrow.grad(), expected.to(torch::kBFloat16)));
  EXPECT_TRUE(
      torch::equal(complex.grad(), torch::complex(expected, 2 * expected)));
  EXPECT_TRUE(torch::equal(sparse.grad()._values(), expected));
  EXPECT_FALSE(none.grad().defined());
  const auto half = parameter_with(values.to(torch::kHalf));
  EXPECT_ERROR(
      Error, scaler.unscale_({half}), "a gradient of Half", "keep masters");
}

TEST(GradScaler, StepsThatAreNotFiniteAreSkipped) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 2});
  auto good = parameter_with(torch::tensor({4.0f}));
  auto bad = parameter_with(torch::tensor({kInf}));
  torch::optim::SGD first({good}, 1);
  torch::optim::SGD second({bad}, 1);
  EXPECT_TRUE(scaler.step(first));
  EXPECT_FALSE(scaler.step(second));
  EXPECT_EQ(good.item<float>(), -1);
  EXPECT_EQ(bad.item<float>(), 0);
  scaler.update();
  EXPECT_EQ(scaler.scale(), 2);
  for (int i = 0; i < 2; ++i) {
    good.mutable_grad() = torch::tensor({2.0f});
    EXPECT_TRUE(scaler.step(first));
    scaler.update();
  }
  EXPECT_EQ(good.item<float>(), -3);
  EXPECT_EQ(scaler.scale(), 4);
}

TEST(GradScaler, CallsInTheWrongOrderAreErrors) {
  GradScaler scaler;
  const auto parameter = parameter_with(torch::ones({1}));
  torch::optim::SGD sgd({parameter}, 1);
  EXPECT_ERROR(Error, scaler.update(), "expected step, unscale_ or note");
  scaler.unscale_(sgd);
  EXPECT_ERROR(
      Error, scaler.unscale_(sgd), "unscale_ was called after unscale_");
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_ERROR(Error, scaler.step(sgd), "step was called twice");
  EXPECT_ERROR(Error, scaler.unscale_(sgd), "unscale_ was called after step");
  scaler.update();
  EXPECT_TRUE(scaler.step(sgd));
}

TEST(GradScaler, LossesOf16BitsAreScaledInFloat) {
  const GradScaler scaler;
  const auto loss = torch::full({1}, 2.0f, torch::kHalf);
  EXPECT_EQ(scaler.scale(loss).scalar_type(), torch::kFloat);
  EXPECT_EQ(scaler.scale(loss).item<float>(), 131072);
  const GradScaler off({.enabled = false});
  EXPECT_EQ(off.scale(), 1);
  EXPECT_TRUE(off.scale(loss).is_same(loss));
}

TEST(GradScaler, DisabledItStepsWhateverComes) {
  GradScaler scaler({.enabled = false});
  const auto parameter = parameter_with(torch::tensor({kInf}));
  torch::optim::SGD sgd({parameter}, 1);
  EXPECT_TRUE(scaler.step(sgd));
  scaler.update();
  EXPECT_EQ(parameter.item<float>(), -kInf);
}

TEST(GradScaler, StateGoesOnWhereItWas) {
  GradScaler scaler({.init_scale = 16, .growth_interval = 3});
  for (const bool finite : {false, true, true}) {
    scaler.note(finite);
    scaler.update();
  }
  GradScaler loaded({.growth_interval = 3});
  loaded.load(scaler.state());
  EXPECT_EQ(loaded.scale(), 8);
  loaded.note(true);
  loaded.update();
  EXPECT_EQ(loaded.scale(), 16);
  for (const GradScalerState& state :
       {GradScalerState{0, 0},
        GradScalerState{kInf, 0},
        GradScalerState{-1, 0},
        GradScalerState{1, 3},
        GradScalerState{1, -1}}) {
    EXPECT_ERROR(
        Error,
        loaded.load(state),
        "expected a scale of more than 0",
        "3 steps");
  }
  EXPECT_EQ(loaded.scale(), 16);
}

TEST(GradScaler, OptionsAreChecked) {
  EXPECT_ERROR(Error, GradScaler({.init_scale = 0}), "init_scale is 0");
  EXPECT_ERROR(Error, GradScaler({.init_scale = 1e39}), "init_scale is 1e+39");
  EXPECT_ERROR(Error, GradScaler({.growth_factor = 1}), "growth_factor is 1");
  EXPECT_ERROR(Error, GradScaler({.backoff_factor = 1}), "less than 1");
  EXPECT_ERROR(
      Error, GradScaler({.growth_interval = 0}), "growth_interval is 0");
  run_threads(2, [](const Group& group) {
    EXPECT_ERROR(
        Error,
        GradScaler({.growth_interval = 5 + group.rank(), .group = group}),
        "growth_interval",
        "5",
        "6");
  });
}

// Averages need no group: what is not finite on one rank is so on all.
TEST(GradScaler, AnOverflowOnOneRankSkipsTheStepOnAll) {
  for (const char* hook : {"none", "fp16", "noop"}) {
    run_threads(2, [&](const Group& group) {
      torch::nn::Linear net(2, 2);
      test::fill_parameters(*net, 1);
      auto ddp = DistributedDataParallel(
          net,
          group,
          {.hook = hook, .precision = {.parameters = at::kBFloat16}});
      GradScaler scaler(
          {.group = hook == std::string("noop") ? std::optional(group)
                                                : std::nullopt});
      torch::optim::SGD sgd(ddp->parameters(), 0.1);
      const auto step = [&](float input) {
        sgd.zero_grad();
        const auto x = torch::full({1, 2}, input);
        const auto output = ddp->forward(x).to(torch::kFloat);
        scaler.scale(output.square().mean()).backward();
        const bool stepped = scaler.step(sgd);
        scaler.update();
        return stepped;
      };
      const auto before = net->weight.detach().clone();
      EXPECT_FALSE(step(group.rank() == 1 ? kInf : 1));
      EXPECT_TRUE(test::same_bits(net->weight, before));
      EXPECT_EQ(scaler.scale(), 32768);
      EXPECT_TRUE(step(0.25));
      EXPECT_FALSE(test::same_bits(net->weight, before));
      EXPECT_TRUE(test::same_on_all_ranks(group, net->weight));
    });
  }
}

// What the scaler is for: gradients that fp16 has no numbers for.
TEST(GradScaler, SmallGradientsSurviveFp16) {
  run_threads(1, [](const Group& group) {
    const auto largest_gradient = [&](bool scaled) {
      torch::nn::Linear net(4, 4);
      test::fill_parameters(*net, 2);
      auto ddp = DistributedDataParallel(
          net, group, {.precision = {.parameters = at::kHalf}});
      GradScaler scaler({.enabled = scaled});
      const auto output = ddp->forward(torch::ones({1, 4}));
      scaler.scale(output.to(torch::kFloat).sum() * 1e-8).backward();
      EXPECT_TRUE(scaler.unscale_(ddp->parameters()));
      return net->weight.grad().abs().max().item<float>();
    };
    EXPECT_EQ(largest_gradient(false), 0);
    EXPECT_NEAR(largest_gradient(true), 1e-8, 1e-11);
  });
}

}  // namespace
}  // namespace gradwire
