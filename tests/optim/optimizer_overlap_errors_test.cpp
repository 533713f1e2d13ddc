// What an overlapped optimizer refuses, when it steps, and what becomes of a
// failed bucket.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "gradwire/ddp/ddp.h"
#include "gradwire/optim/optimizer_overlap.h"
#include "tests/support/expect.h"
#include "tests/support/gradients.h"
#include "tests/support/moody_hook.h"
#include "tests/support/ranks.h"

namespace gradwire::test {
namespace {

const RankOptions kNoSockets{.transport = "local"};

auto given() {
  return std::make_shared<GivenGradients>(std::vector<std::int64_t>{40, 30});
}

GivenGradients::Gradients ones() {
  return {torch::ones({40}), torch::ones({30})};
}

void expect_refused(
    const HookChoice& hook,
    const std::shared_ptr<GivenGradients>& net,
    const std::string& text) {
  run_threads(
      2,
      [&](const Group& group) {
        EXPECT_ERROR(
            Error, DistributedDataParallel(net, group, {.hook = hook}), text);
      },
      kNoSockets);
}

TEST(OptimizerOverlapErrors, WhatItCannotStep) {
  const auto net = given();
  torch::optim::LBFGS lbfgs(net->parameters());
  expect_refused(
      optimizer_overlap("none", lbfgs), net, "LBFGS steps all parameters");
  torch::optim::SGD sgd(net->parameters(), 0.1);
  expect_refused(
      optimizer_overlap("none", sgd, {.clip_value = 0.0}),
      net,
      "clip_value is 0, expected more than 0");
  expect_refused(optimizer_overlap("int7", sgd), net, "unknown hook 'int7'");
  sgd.add_parameters({torch::zeros({3}, torch::requires_grad())});
  expect_refused(
      optimizer_overlap("none", sgd),
      net,
      "the optimizer's parameter 2 of group 0, of sizes [3], is none that the "
      "DDP averages");
}

// Of somebody's own.
struct CountingSgd : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure closure) override {
    const auto result = SGD::step(std::move(closure));
    ++steps;
    return result;
  }
  std::atomic<int> steps = 0;
};

// The second bucket is reduced when the first one has stepped.
TEST(OptimizerOverlap, StepsWhileBackwardGoesOn) {
  run_threads(
      1,
      [](const Group& group) {
        const auto net = given();
        CountingSgd sgd(net->parameters(), 0.1);
        const auto patient = [&](Bucket& bucket) {
          const auto deadline =
              std::chrono::steady_clock::now() + std::chrono::seconds(20);
          while (bucket.index() == 1 && sgd.steps < 2 &&
                 std::chrono::steady_clock::now() < deadline) {
            std::this_thread::yield();
          }
          EXPECT_EQ(sgd.steps == 2, bucket.index() == 1);
          return Future::ready(bucket.buffer());
        };
        auto ddp = DistributedDataParallel(
            net,
            group,
            {.hook = optimizer_overlap(patient, sgd),
             .bucket_cap_mb = 0.0001,
             .first_bucket_cap_mb = 0.0001});
        for (int step = 0; step < 2; ++step) {
          ddp->zero_grad();
          ddp->forward(ones()).backward();
        }
        EXPECT_EQ(ddp->stats().last.buckets.size(), 2u);
        EXPECT_EQ(sgd.steps, 3);
        EXPECT_EQ(net->parameters()[0][0].item<float>(), -0.2F);
      },
      kNoSockets);
}

// Frozen parameters never step with a plain optimizer either.
TEST(OptimizerOverlapErrors, FrozenParametersAreNone) {
  run_threads(
      2,
      [](const Group& group) {
        const auto net = given();
        net->parameters()[0].set_requires_grad(false);
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto ddp = DistributedDataParallel(
            net, group, {.hook = optimizer_overlap("none", sgd)});
        ddp->forward(ones()).backward();
        EXPECT_EQ(net->parameters()[0][0].item<float>(), 0);
        EXPECT_EQ(net->parameters()[1][0].item<float>(), -0.1F);
      },
      kNoSockets);
}

TEST(OptimizerOverlapErrors, RanksMustAgree) {
  run_threads(
      2,
      [](const Group& group) {
        const auto net = given();
        torch::optim::SGD sgd(net->parameters(), 0.1);
        torch::optim::Adam adam(net->parameters(), 0.1);
        OverlapOptions options;
        if (group.rank() == 1) {
          options.clip_value = 0.5;
        }
        EXPECT_ERROR(
            Error,
            DistributedDataParallel(
                net, group, {.hook = optimizer_overlap("none", sgd, options)}),
            "optimizer_overlap(none)",
            "optimizer_overlap:clip_value=0.5(none)");
        torch::optim::Optimizer* optimizer = &adam;
        if (group.rank() == 1) {
          optimizer = &sgd;
        }
        EXPECT_ERROR(
            Error,
            DistributedDataParallel(
                net, group, {.hook = optimizer_overlap("none", *optimizer)}),
            "of torch::optim::Adam with 1 groups",
            "of torch::optim::SGD with 1 groups");
      },
      kNoSockets);
}

// The next step works, and so does the next with another scale.
TEST(OptimizerOverlapErrors, AFailedBucketDoesNotStep) {
  run_threads(
      2,
      [](const Group& group) {
        const auto net = given();
        torch::optim::SGD sgd(net->parameters(), 0.1);
        bool fail_now = false;
        double scale = 1;
        auto ddp = DistributedDataParallel(
            net,
            group,
            {.hook = optimizer_overlap(
                 moody_hook(group, fail_now, 1),
                 sgd,
                 {.scale = [&] { return scale; }}),
             .bucket_cap_mb = 0.0001,
             .first_bucket_cap_mb = 0.0001});
        const auto step = [&] {
          ddp->zero_grad();
          ddp->forward(ones()).backward();
        };
        step();
        fail_now = true;
        EXPECT_ERROR(Error, step(), "bad mood", "bucket 1");
        fail_now = false;
        // One bucket has stepped, the other has not.
        EXPECT_EQ(net->parameters()[0][0].item<float>(), -0.1F);
        EXPECT_EQ(net->parameters()[1][0].item<float>(), -0.2F);
        scale = NAN;
        EXPECT_ERROR(
            Error, step(), "the scale of an overlapped optimizer is nan");
        scale = 2;
        step();
        EXPECT_FLOAT_EQ(net->parameters()[0][0].item<float>(), -0.15F);
        EXPECT_FLOAT_EQ(net->parameters()[1][0].item<float>(), -0.25F);
        EXPECT_EQ(ddp->stats().failed_steps, 2);
        EXPECT_EQ(ddp->stats().steps, 2);
      },
      kNoSockets);
}

// With all_or_nothing a failed bucket leaves everything as it was.
TEST(OptimizerOverlapErrors, AllOrNothingWhenABucketFails) {
  run_threads(
      2,
      [](const Group& group) {
        const auto net = given();
        torch::optim::SGD sgd(net->parameters(), 0.1);
        bool fail_now = false;
        auto ddp = DistributedDataParallel(
            net,
            group,
            {.hook = optimizer_overlap(
                 moody_hook(group, fail_now, 1), sgd, {.all_or_nothing = true}),
             .bucket_cap_mb = 0.0001,
             .first_bucket_cap_mb = 0.0001});
        const auto step = [&] {
          ddp->zero_grad();
          ddp->forward(ones()).backward();
        };
        step();
        fail_now = true;
        EXPECT_ERROR(Error, step(), "bad mood", "bucket 1");
        EXPECT_EQ(net->parameters()[0][0].item<float>(), -0.1F);
        EXPECT_EQ(net->parameters()[1][0].item<float>(), -0.1F);
      },
      kNoSockets);
}

}  // namespace
}  // namespace gradwire::test
