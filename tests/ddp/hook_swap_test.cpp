// Hooks come and go between iterations.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "gradwire/hook/registry.h"
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

// Objects of one class may do different things.
TEST(HookSwap, RanksMustAgreeOnWhatAnObjectWasMadeOf) {
  run_threads(2, [](const Group& group) {
    auto ddp = DistributedDataParallel(torch::nn::Linear(2, 2), group);
    const std::shared_ptr<Hook> hook = make_hook(
        group.rank() == 0 ? "fp16(allreduce)" : "bf16(allreduce)", group);
    EXPECT_ERROR(
        Error,
        ddp->set_hook(hook),
        "ranks do not agree on set_hook: hook is 'custom fp16(allreduce)' on "
        "rank 0 but 'custom bf16(allreduce)' on rank 1");
    EXPECT_EQ(gradient_of_step(ddp, group), 0.5f);
  });
}

// What a hook remembers belongs to one DDP.
TEST(HookSwap, AnObjectServesOneDdp) {
  run_threads(2, [](const Group& group) {
    const std::shared_ptr<Hook> hook = make_hook("int8", group);
    auto first = std::make_unique<DistributedDataParallel<torch::nn::Linear>>(
        torch::nn::Linear(2, 2),
        group,
        DistributedDataParallelOptions{.hook = hook});
    const auto second = [&] {
      return DistributedDataParallel(
          torch::nn::Linear(2, 2), group, {.hook = hook});
    };
    EXPECT_ERROR(Error, second(), "serves another DDP already");
    auto other = DistributedDataParallel(torch::nn::Linear(2, 2), group);
    EXPECT_ERROR(Error, other->set_hook(hook), "serves another DDP already");
    (*first)->set_hook(hook);
    first.reset();
    other->set_hook(hook);
    EXPECT_NEAR(gradient_of_step(other, group), 0.5f, 0.01f);
  });
}

// What the hook before still owed is sent by the one that follows it, if it
// sends such things at all.
TEST(HookSwap, WhatIsOwedIsHandedOn) {
  struct Net : torch::nn::Module {
    Net() {
      // Not in the order of memory.
      w = register_parameter(
          "w",
          torch::zeros({16, 4, 5, 5})
              .contiguous(at::MemoryFormat::ChannelsLast));
    }
    at::Tensor forward(const at::Tensor& x) {
      return (w * x).sum();
    }
    at::Tensor w;
  };
  run_threads(2, [](const Group& group) {
    const auto mine = test::random_tensor({16, 4, 5, 5}, group.rank());
    const auto exact = test::exact_mean(group, mine);
    for (const std::string next :
         {"allreduce",
          "int8",
          "powersgd:rank=4,start=0",
          "powersgd:rank=9,start=0"}) {
      for (const std::string first : {"int4", "powersgd:rank=2,start=0"}) {
        auto ddp = DistributedDataParallel(
            std::make_shared<Net>(), group, {.hook = first});
        at::Tensor sent = torch::zeros_like(mine);
        const auto step = [&](const at::Tensor& x) {
          ddp->zero_grad();
          ddp->forward(x).backward();
          sent += ddp->parameters()[0].grad();
        };
        step(mine);
        const double lost = (sent - exact).norm().item<double>();
        ddp->set_hook(next);
        step(torch::zeros_like(mine));
        const double left = (sent - exact).norm().item<double>();
        if (next == "allreduce") {
          EXPECT_EQ(left, lost) << first;
        } else {
          EXPECT_LT(left, 0.9 * lost) << first << " then " << next;
        }
      }
    }
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
