// Mixed precision and hooks: types on the wire, bytes, and what ranks agree on.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/comm_hook_type.h"
#include "gradwire/ddp/ddp.h"
#include "gradwire/ddp/join.h"
#include "tests/ddp/join_net.h"
#include "tests/ddp/mixed_net.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::kBf16;
using test::mixed_input;
using test::mixed_loss;
using test::MixedNet;
using test::run_threads;

TEST(PrecisionHooks, ReducedGradientsTakeHalfTheBytes) {
  run_threads(2, [](const Group& group) {
    const auto bytes = [&](const MixedPrecision& precision) {
      torch::nn::Linear net(64, 64);
      auto ddp = DistributedDataParallel(net, group, {.precision = precision});
      ddp->forward(torch::ones({1, 64})).sum().backward();
      EXPECT_EQ(net->weight.grad().scalar_type(), torch::kFloat);
      EXPECT_TRUE(test::same_on_all_ranks(group, net->weight.grad()));
      return ddp->stats().last.sent.payload;
    };
    const auto plain = bytes({});
    EXPECT_EQ(plain, 4 * 64 * 65);
    EXPECT_EQ(bytes(kBf16), plain);
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      EXPECT_EQ(bytes({.reduction = type}), plain / 2);
      EXPECT_EQ(bytes({.parameters = type, .reduction = type}), plain / 2);
    }
  });
}

TEST(PrecisionHooks, HooksSeeFullPrecisionOrTheTypeOfReduction) {
  const std::vector<std::pair<const char*, const char*>> in_bf16{
      {"none", "bf16"},
      {"allreduce", "bf16"},
      {"bf16", "bf16"},
      {"bf16(int8)", "bf16(int8)"},
      {"powersgd:start=1", "bf16(powersgd:start=1)"},
      {"int8", "bf16(int8)"}};
  run_threads(2, [&](const Group& group) {
    MixedNet exact;
    auto plain = DistributedDataParallel(exact, group, {.precision = kBf16});
    for (const auto& [hook, reduced] : in_bf16) {
      for (const bool reduces : {false, true}) {
        SCOPED_TRACE(hook);
        MixedNet net;
        const auto type = reduces ? std::optional(at::kBFloat16) : std::nullopt;
        auto ddp = DistributedDataParallel(
            net,
            group,
            {.precision = {.parameters = at::kBFloat16, .reduction = type}});
        ddp->set_hook(hook);
        EXPECT_EQ(ddp->hook(), reduces ? reduced : hook);
        for (int step = 0; step < 2; ++step) {
          ddp->zero_grad();
          plain->zero_grad();
          mixed_loss(ddp->forward(mixed_input(group, 0))).backward();
          mixed_loss(plain->forward(mixed_input(group, 0))).backward();
          test::expect_masters(*net);
          for (const auto& parameter : net->parameters()) {
            EXPECT_TRUE(test::same_on_all_ranks(group, parameter.grad()));
          }
        }
        if (std::string(hook).starts_with("powersgd")) {
          continue;
        }
        const auto& gradient = exact->fc->weight.grad();
        EXPECT_LT(
            (net->fc->weight.grad() - gradient).abs().max().item<float>(),
            0.03 * gradient.abs().max().item<float>());
      }
    }
  });
}

TEST(PrecisionHooks, RegisteringAHookMeetsTheTypeOfReduction) {
  run_threads(2, [](const Group& group) {
    auto ddp = DistributedDataParallel(
        MixedNet(), group, {.precision = {.reduction = at::kBFloat16}});
    register_ddp_comm_hook(DDPCommHookType::POWER_SGD, ddp);
    EXPECT_EQ(ddp->hook(), "bf16(powersgd)");
    EXPECT_ERROR(
        Error,
        register_ddp_comm_hook(DDPCommHookType::ALLREDUCE, ddp),
        "can only be called once");
    const auto lambda = [](Bucket& bucket) {
      return Future::ready(bucket.buffer());
    };
    EXPECT_ERROR(
        Error,
        ddp->set_hook(lambda),
        "precision.reduction is BFloat16 and the hook is 'custom ",
        "expected one with a spec");
    ddp->set_hook("none");
    EXPECT_EQ(ddp->hook(), "bf16");
  });
}

// Whoever steps parameters as soon as their average is there must find masters,
// those without a gradient on this rank included.
TEST(PrecisionHooks, MastersAreBackWhenAHookGetsTheirBucket) {
  struct Branches : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x, bool both) {
      return both ? left(x) + right(x) : left(x);
    }
    torch::nn::Linear left = register_module("left", torch::nn::Linear(4, 4));
    torch::nn::Linear right = register_module("right", torch::nn::Linear(4, 4));
  };
  for (const bool static_graph : {false, true}) {
    run_threads(2, [&](const Group& group) {
      int seen = 0;
      const auto hook = [&](Bucket& bucket) {
        for (std::size_t i = 0; i < bucket.size(); ++i) {
          EXPECT_EQ(bucket.parameter(i).tensor.scalar_type(), torch::kFloat);
          EXPECT_EQ(bucket.gradient(i).scalar_type(), torch::kFloat);
          ++seen;
        }
        return group.all_reduce(bucket.buffer());
      };
      auto ddp = DistributedDataParallel(
          std::make_shared<Branches>(),
          group,
          {.hook = hook,
           .bucket_cap_mb = 1e-4,
           .find_unused_parameters = true,
           .static_graph = static_graph,
           .precision = kBf16});
      for (int step = 0; step < 3; ++step) {
        const bool both = static_graph || group.rank() == 0;
        mixed_loss(ddp->forward(torch::ones({1, 4}), both)).backward();
        EXPECT_EQ(seen, 4 * (step + 1));
        test::expect_masters(*ddp->module());
      }
    });
  }
}

TEST(PrecisionHooks, RanksWithoutInputMirrorTheOthers) {
  for (const char* hook : {"none", "int8"}) {
    run_threads(3, [&](const Group& group) {
      auto net = test::make_net(3);
      auto ddp = DistributedDataParallel(
          net, group, {.hook = hook, .precision = kBf16});
      {
        Join join(ddp);
        test::train(ddp, group, {3, 1, 2});
      }
      test::expect_equal_on_all_ranks(group, test::state_of(net));
      test::expect_masters(*net);
    });
  }
}

TEST(PrecisionHooks, RanksAgreeOnTypes) {
  run_threads(2, [](const Group& group) {
    const auto wrap = [&](const MixedPrecision& precision) {
      DistributedDataParallel(MixedNet(), group, {.precision = precision});
    };
    EXPECT_ERROR(
        Error,
        wrap(
            group.rank() == 0 ? MixedPrecision()
                              : MixedPrecision{.parameters = at::kHalf}),
        "precision.parameters",
        "unset",
        "Half");
    EXPECT_ERROR(
        Error,
        wrap({.parameters = at::kInt}),
        "precision.parameters is Int, expected at::kBFloat16 or at::kHalf");
    EXPECT_ERROR(
        Error,
        wrap({.buffers = at::kDouble}),
        "precision.buffers is Double, expected at::kBFloat16, at::kHalf or "
        "at::kFloat");
  });
}

}  // namespace
}  // namespace gradwire
