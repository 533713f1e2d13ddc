// Hooks come and go between iterations.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::run_threads;

float gradient_of_step(
    DistributedDataParallel<torch::nn::Linear>& ddp, const Group& group) {
  ddp->zero_grad();
  ddp->forward(torch::full({1, 2}, 1.0 * group.rank())).sum().backward();
  return ddp->module()->weight.grad()[0][0].item<float>();
}

TEST(HookSwap, AnyHookToAnyOtherAndBackToNone) {
  run_threads(2, [](const Group& group) {
    auto ddp = DistributedDataParallel(torch::nn::Linear(2, 2), group);
    const auto local = static_cast<float>(group.rank());
    EXPECT_EQ(ddp->hook(), "none");
    EXPECT_EQ(gradient_of_step(ddp, group), 0.5f);
    ddp->set_hook("none");
    EXPECT_EQ(gradient_of_step(ddp, group), 0.5f);
    ddp->set_hook("noop");
    EXPECT_EQ(ddp->hook(), "noop");
    EXPECT_EQ(gradient_of_step(ddp, group), local);
    ddp->set_hook("allreduce");
    EXPECT_EQ(gradient_of_step(ddp, group), 0.5f);
    ddp->set_hook(
        [group](Bucket& bucket) { return group.all_reduce(bucket.buffer()); });
    EXPECT_EQ(gradient_of_step(ddp, group), 1.0f);
    ddp->set_hook("none");
    EXPECT_EQ(ddp->hook(), "none");
    EXPECT_EQ(gradient_of_step(ddp, group), 0.5f);
  });
}

// The Reducer's own averaging and the allreduce hook round alike, so it does
// not matter which of them a run has.
TEST(HookSwap, AllreduceHasTheSameBitsAsNone) {
  run_threads(3, [](const Group& group) {
    std::vector<at::Tensor> gradients;
    for (const char* first : {"none", "allreduce", "noop"}) {
      torch::nn::Linear net(7, 5);
      test::fill_parameters(*net, 2);
      auto ddp = DistributedDataParallel(net, group, {.hook = first});
      ddp->set_hook("allreduce");
      ddp->forward(test::random_tensor({3, 7}, group.rank())).sum().backward();
      gradients.push_back(net->weight.grad());
    }
    EXPECT_TRUE(test::same_bits(gradients[0], gradients[1]));
    EXPECT_TRUE(test::same_bits(gradients[0], gradients[2]));
  });
}

TEST(HookSwap, NotBetweenForwardAndBackward) {
  run_threads(2, [](const Group& group) {
    for (const char* first : {"none", "allreduce"}) {
      auto ddp = DistributedDataParallel(
          torch::nn::Linear(2, 2), group, {.hook = first});
      auto loss = ddp->forward(torch::full({1, 2}, 1.0 * group.rank())).sum();
      EXPECT_ERROR(
          Error,
          ddp->set_hook("noop"),
          "set_hook was called between forward and backward",
          concat("rank ", group.rank()));
      loss.backward();
      EXPECT_EQ(ddp->module()->weight.grad()[0][0].item<float>(), 0.5f);
      ddp->set_hook("noop");
      EXPECT_EQ(gradient_of_step(ddp, group), group.rank());
    }
  });
}

TEST(HookSwap, RanksMustAgree) {
  run_threads(2, [](const Group& group) {
    auto ddp = DistributedDataParallel(torch::nn::Linear(2, 2), group);
    EXPECT_ERROR(
        Error,
        ddp->set_hook(group.rank() == 0 ? "noop" : "allreduce"),
        "ranks do not agree on set_hook: hook is 'noop' on rank 0 but "
        "'allreduce' on rank 1");
    EXPECT_ERROR(
        Error,
        ddp->set_hook(group.rank() == 0 ? "noop" : "nope"),
        "local check is 'passed' on rank 0 but",
        "unknown hook 'nope'");
    EXPECT_ERROR(Error, ddp->set_hook("nope"), "unknown hook 'nope'");
    EXPECT_EQ(ddp->hook(), "none");
    EXPECT_EQ(gradient_of_step(ddp, group), 0.5f);
  });
}

// A hook sees every parameter under the module's own name.
TEST(HookSwap, HooksSeeNamesAndAreToldOfNewLayouts) {
  struct Recorder : Hook {
    Future reduce(Bucket& bucket) override {
      for (std::size_t i = 0; i < bucket.size(); ++i) {
        names.push_back(bucket.parameter(i).name);
      }
      return Future::ready(bucket.buffer());
    }
    void rebuild() override {
      ++rebuilds;
    }
    std::vector<std::string> names;
    int rebuilds = 0;
  };
  run_threads(2, [](const Group& group) {
    auto recorder = std::make_shared<Recorder>();
    torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
    auto ddp = DistributedDataParallel(net, group, {.hook = recorder});
    for (int step = 0; step < 3; ++step) {
      recorder->names.clear();
      ddp->forward(torch::ones({1, 2})).sum().backward();
      std::ranges::sort(recorder->names);
      EXPECT_EQ(
          recorder->names,
          (std::vector<std::string>{
              "0.bias", "0.weight", "1.bias", "1.weight"}));
      EXPECT_EQ(recorder->rebuilds, step == 0 ? 0 : 1);
    }
  });
}

}  // namespace
}  // namespace gradwire
