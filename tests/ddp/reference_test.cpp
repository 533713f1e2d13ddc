// PyTorch's own tests of its hooks, one to one: same sizes, same seeds, same
// tolerances (test_ddp_hooks, test_c10d_gloo, test_c10d_nccl,
// distributed_test).

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/comm_hook_type.h"
#include "gradwire/ddp/ddp.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::run_threads;

// One 40x20 parameter; rank 1 squares its input.
struct TaskImpl : torch::nn::Module {
  TaskImpl() {
    p = register_parameter("p", test::random_tensor({40, 20}, 0));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x.mm(p);
  }
  at::Tensor p;
};
TORCH_MODULE(Task);

at::Tensor task_input(const Group& group) {
  const auto input = test::random_tensor({40, 40}, 2020);
  return group.rank() == 1 ? input.square() : input;
}

at::Tensor task_gradient(
    const Group& group, std::optional<DDPCommHookType> type) {
  auto ddp = DistributedDataParallel(Task(), group);
  if (type) {
    register_ddp_comm_hook(*type, ddp, group);
  }
  ddp->forward(task_input(group)).mean().backward();
  return ddp->parameters().at(0).grad();
}

TEST(Reference, DdpCommHookAllreduceHook) {
  run_threads(2, [](const Group& group) {
    const auto reference = task_gradient(group, {});
    const auto hooked = task_gradient(group, DDPCommHookType::ALLREDUCE);
    EXPECT_TRUE(torch::allclose(hooked, reference, 1e-5, 0));
  });
}

// fp16_compress, quantize_per_tensor and quantize_per_channel of the reference;
// bf16 it does not test, and rounds eight times as coarsely as fp16.
TEST(Reference, DdpCommHookCompressedHooks) {
  const std::vector<std::pair<DDPCommHookType, double>> tolerances{
      {DDPCommHookType::FP16_COMPRESS, 1e-4},
      {DDPCommHookType::QUANTIZE_PER_TENSOR, 1e-4},
      {DDPCommHookType::QUANTIZE_PER_CHANNEL, 1e-4},
      {DDPCommHookType::BF16_COMPRESS, 8e-4}};
  run_threads(2, [&](const Group& group) {
    const auto reference = task_gradient(group, {});
    for (const auto& [type, tolerance] : tolerances) {
      const auto hooked = task_gradient(group, type);
      EXPECT_TRUE(torch::allclose(hooked, reference, 1e-5, tolerance))
          << hook_spec(type);
      EXPECT_FALSE(torch::equal(hooked, reference)) << hook_spec(type);
    }
  });
}

TEST(Reference, DdpCommHookNoopHook) {
  run_threads(2, [](const Group& group) {
    const auto reference = task_gradient(group, {});
    auto local = task_gradient(group, DDPCommHookType::NOOP);
    EXPECT_FALSE(torch::allclose(local, reference, 1e-5, 0));
    local.div_(group.size());
    group.all_reduce(local).wait();
    EXPECT_TRUE(torch::allclose(local, reference, 1e-5, 0));
  });
}

TEST(Reference, IsLastHook) {
  run_threads(2, [](const Group& group) {
    torch::nn::Sequential net;
    for (int i = 0; i < 11; ++i) {
      net->push_back(torch::nn::Linear(500, 500));
    }
    std::vector<bool> flags;
    const auto record = [&flags](Bucket& bucket) {
      flags.push_back(bucket.is_last());
      return Future::ready(bucket.buffer());
    };
    auto ddp = DistributedDataParallel(
        net, group, {.hook = record, .bucket_cap_mb = 0.9});
    for (int step = 0; step < 3; ++step) {
      flags.clear();
      ddp->forward(torch::ones({2, 500})).sum().backward();
      ASSERT_FALSE(flags.empty());
      EXPECT_TRUE(flags.back());
      EXPECT_EQ(std::ranges::count(flags, true), 1);
    }
    EXPECT_GE(flags.size(), 11u);
  });
}

TEST(Reference, DdpCommHookFuturePassing) {
  run_threads(2, [](const Group& group) {
    const auto twos = [](Bucket& bucket) {
      return Future::ready(bucket.buffer()).then([](const at::Tensor& t) {
        return torch::full_like(t, 2);
      });
    };
    auto ddp = DistributedDataParallel(
        torch::nn::Linear(10, 10), group, {.hook = twos});
    ddp->forward(torch::ones({8, 10})).mean().backward();
    for (const auto& parameter : ddp->parameters()) {
      EXPECT_TRUE(parameter.grad().eq(2).all().item<bool>());
    }
  });
}

TEST(Reference, DdpCommHookRegisterJustOnce) {
  run_threads(2, [](const Group& group) {
    auto ddp = DistributedDataParallel(torch::nn::Linear(4, 4), group);
    register_ddp_comm_hook(DDPCommHookType::NOOP, ddp, group);
    EXPECT_ERROR(
        Error,
        register_ddp_comm_hook(DDPCommHookType::ALLREDUCE, ddp, group),
        "register_ddp_comm_hook can only be called once",
        "hook 'noop' is registered",
        "set_hook replaces it");
    EXPECT_EQ(ddp->hook(), "noop");
  });
}

TEST(Reference, DdpInvalidCommHookInit) {
  run_threads(2, [](const Group& group) {
    const auto wrap = [&](const HookChoice& hook) {
      DistributedDataParallel(torch::nn::Linear(4, 4), group, {.hook = hook});
    };
    EXPECT_ERROR(Error, wrap(std::shared_ptr<Hook>()), "null hook");
    EXPECT_ERROR(Error, wrap("1"), "unknown hook '1'");
    EXPECT_ERROR(Error, wrap(""), "empty spec");
  });
}

TEST(Reference, DdpInvalidCommHookReturnType) {
  run_threads(2, [](const Group& group) {
    auto ddp = DistributedDataParallel(
        torch::nn::Linear(4, 4), group, {.hook = [](Bucket&) {
          return Future();
        }});
    auto loss = ddp->forward(torch::ones({1, 4})).sum();
    EXPECT_ERROR(
        Error,
        loss.backward(),
        "the hook returned an empty Future",
        "bucket 0");
    // A result of the wrong size is told from one that fits.
    ddp->set_hook([](Bucket&) { return Future::ready(torch::ones({3})); });
    loss = ddp->forward(torch::ones({1, 4})).sum();
    EXPECT_ERROR(Error, loss.backward(), "result has 3 elements, expected 20");
  });
}

TEST(Reference, DefaultDdpCommHooks) {
  run_threads(2, [](const Group& group) {
    for (const auto type :
         {std::optional<DDPCommHookType>(),
          std::optional(DDPCommHookType::ALLREDUCE),
          std::optional(DDPCommHookType::FP16_COMPRESS),
          std::optional(DDPCommHookType::BF16_COMPRESS),
          std::optional(DDPCommHookType::QUANTIZE_PER_TENSOR),
          std::optional(DDPCommHookType::QUANTIZE_PER_CHANNEL)}) {
      auto net = torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false));
      torch::nn::init::ones_(net->weight);
      auto ddp = DistributedDataParallel(
          net, group, {.gradient_as_bucket_view = true});
      if (type) {
        register_ddp_comm_hook(*type, ddp);
      }
      // Rank r contributes r/2 a weight: the mean is 0.25.
      const auto input = torch::full({1, 2}, group.rank() / 2.0);
      ddp->forward(input).sum().backward();
      EXPECT_TRUE(net->weight.grad().eq(0.25).all().item<bool>());
    }
  });
}

TEST(Reference, DdpHookParityAllreduce) {
  run_threads(3, [](const Group& group) {
    for (const bool own_group : {false, true}) {
      auto net = torch::nn::Linear(torch::nn::LinearOptions(1, 5).bias(false));
      auto ddp = DistributedDataParallel(net, group);
      register_ddp_comm_hook(
          DDPCommHookType::ALLREDUCE,
          ddp,
          own_group ? std::optional(group.duplicate("hook")) : std::nullopt);
      for (int i = 0; i < 100; ++i) {
        ddp->zero_grad();
        const auto input = torch::full({1, 1}, 1.0 * group.rank());
        ddp->forward(input).sum().backward();
        const auto expected = torch::full({5, 1}, 1.0);  // mean of 0, 1, 2
        EXPECT_TRUE(torch::allclose(net->weight.grad(), expected, 1e-5, 0));
      }
    }
  });
}

TEST(Reference, DdpHookWithOptimizerNoSync) {
  run_threads(2, [](const Group& group) {
    int calls = 0;
    auto ddp = DistributedDataParallel(
        torch::nn::Linear(2, 2),
        group,
        {.hook = [&calls, group](Bucket& bucket) {
          ++calls;
          return group.all_reduce(bucket.buffer());
        }});
    {
      const auto guard = ddp->no_sync();
      ddp->forward(torch::ones({1, 2})).sum().backward();
    }
    EXPECT_EQ(calls, 0);
    ddp->forward(torch::ones({1, 2})).sum().backward();
    EXPECT_EQ(calls, 1);
  });
}

TEST(Reference, DdpCommHookSparseGradients) {
  run_threads(2, [](const Group& group) {
    std::vector<at::Tensor> results;
    for (const char* hook : {"none", "allreduce"}) {
      auto net = torch::nn::EmbeddingBag(
          torch::nn::EmbeddingBagOptions(10, 3).mode(torch::kSum).sparse(true));
      test::fill_parameters(*net, 3);
      auto ddp = DistributedDataParallel(net, group, {.hook = hook});
      const auto ids = torch::tensor({group.rank(), 5, 5, 7});
      ddp->forward(ids, torch::tensor({0, 2})).mean().backward();
      EXPECT_TRUE(net->weight.grad().is_sparse());
      results.push_back(net->weight.grad().to_dense());
    }
    EXPECT_TRUE(torch::allclose(results[0], results[1], 1e-5, 0));
    EXPECT_GT(results[0].abs().sum().item<float>(), 0);
    EXPECT_TRUE(test::same_on_all_ranks(group, results[1]));
  });
}

}  // namespace
}  // namespace gradwire
