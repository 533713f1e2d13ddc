// DDP against a computation that knows nothing of it: the mean of every rank's
// local gradients, taken in double.

#include "gradwire/ddp/ddp.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::exact_mean;
using test::random_tensor;
using test::run_threads;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    fc = register_module("fc", torch::nn::Linear(4 * 6 * 6, 5));
  }
  at::Tensor forward(const at::Tensor& x) {
    return fc->forward(norm->forward(conv->forward(x)).relu().flatten(1));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

struct Setting {
  const char* name;
  DistributedDataParallelOptions options;
};
void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

class DdpModes : public testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Options,
    DdpModes,
    testing::Values(
        Setting{"plain", {}},
        Setting{"allreduce", {.hook = "allreduce"}},
        Setting{"small_buckets", {.bucket_cap_mb = 1e-4}},
        Setting{"view", {.gradient_as_bucket_view = true}},
        Setting{
            "view_hook",
            {.hook = "allreduce", .gradient_as_bucket_view = true}},
        Setting{"find_unused", {.find_unused_parameters = true}},
        Setting{"static_graph", {.static_graph = true}},
        Setting{"static_hook", {.hook = "allreduce", .static_graph = true}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(DdpModes, GradientsAreTheMeanOfLocalOnes) {
  const auto& options = GetParam().options;
  for (const int world : {1, 2, 3}) {
    run_threads(world, [&](const Group& group) {
      Net net;
      test::fill_parameters(*net, 5);
      Net alone;
      auto ddp = DistributedDataParallel(net, group, options);
      torch::optim::SGD sgd(ddp->parameters(), 0.1);
      for (int step = 0; step < 5; ++step) {
        {
          const torch::NoGradGuard no_grad;
          for (std::size_t i = 0; i < alone->parameters().size(); ++i) {
            alone->parameters()[i].copy_(net->parameters()[i]);
          }
        }
        const auto input = random_tensor({3, 2, 8, 8}, 9 * step + group.rank());
        sgd.zero_grad();
        alone->zero_grad();
        ddp->forward(input).square().mean().backward();
        alone->forward(input).square().mean().backward();
        for (const auto& item : alone->named_parameters()) {
          const auto got = ddp->named_parameters()[item.key()].grad();
          const auto expected = exact_mean(group, item.value().grad());
          EXPECT_TRUE(torch::allclose(got, expected, 1e-4, 1e-7))
              << item.key() << " in step " << step;
          EXPECT_TRUE(test::same_on_all_ranks(group, got)) << item.key();
        }
        sgd.step();
      }
      EXPECT_EQ(ddp->stats().steps, 5);
    });
  }
}

TEST(Ddp, ConstructionHandsOutRankZerosWeightsAndBuffers) {
  run_threads(3, [](const Group& group) {
    Net net;
    test::fill_parameters(*net, group.rank());
    net->norm->running_mean.fill_(group.rank() + 1);
    auto ddp = DistributedDataParallel(net, group);
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(test::same_on_all_ranks(group, item.value())) << item.key();
    }
    EXPECT_EQ(net->norm->running_mean[0].item<float>(), 1);
  });
}

TEST(Ddp, InitSyncCanBeTurnedOff) {
  run_threads(2, [](const Group& group) {
    torch::nn::Linear net(2, 2);
    torch::nn::init::constant_(net->weight, group.rank());
    auto ddp = DistributedDataParallel(net, group, {.init_sync = false});
    EXPECT_EQ(net->weight[0][0].item<float>(), group.rank());
  });
}

TEST(Ddp, BuffersAreRankZerosBeforeEveryForward) {
  run_threads(2, [](const Group& group) {
    for (const bool on : {true, false}) {
      Net net;
      auto ddp = DistributedDataParallel(net, group, {.broadcast_buffers = on});
      ddp->forward(random_tensor({3, 2, 8, 8}, group.rank())).sum().backward();
      const auto before = test::gather(group, net->norm->running_mean);
      EXPECT_FALSE(test::same_bits(before[0], before[1]));
      net->norm->eval();  // keeps its statistics from here on
      ddp->forward(torch::ones({3, 2, 8, 8})).sum().backward();
      EXPECT_EQ(
          test::same_bits(net->norm->running_mean, before[0]),
          on || group.rank() == 0);
    }
  });
}

TEST(Ddp, NoSyncAccumulatesAndTheNextBackwardAveragesTheSum) {
  for (const char* hook : {"none", "allreduce"}) {
    run_threads(2, [&](const Group& group) {
      torch::nn::Linear net(4, 3);
      test::fill_parameters(*net, 1);
      torch::nn::Linear alone(
          std::dynamic_pointer_cast<torch::nn::LinearImpl>(net->clone()));
      auto ddp = DistributedDataParallel(net, group, {.hook = hook});
      for (int micro = 0; micro < 3; ++micro) {
        const auto input = random_tensor({2, 4}, 10 * micro + group.rank());
        alone->forward(input).square().sum().backward();
        if (micro < 2) {
          const Bytes before = ddp->stats().sent;
          const auto guard = ddp->no_sync();
          ddp->forward(input).square().sum().backward();
          EXPECT_EQ(ddp->stats().sent, before);
          EXPECT_TRUE(
              test::same_bits(net->weight.grad(), alone->weight.grad()));
        } else {
          ddp->forward(input).square().sum().backward();
        }
      }
      EXPECT_TRUE(torch::allclose(
          net->weight.grad(), exact_mean(group, alone->weight.grad())));
      EXPECT_TRUE(test::same_on_all_ranks(group, net->weight.grad()));
    });
  }
}

TEST(Ddp, SeveralForwardsBeforeOneBackward) {
  run_threads(2, [](const Group& group) {
    torch::nn::Linear net(4, 3);
    test::fill_parameters(*net, 1);
    torch::nn::Linear alone(
        std::dynamic_pointer_cast<torch::nn::LinearImpl>(net->clone()));
    auto ddp = DistributedDataParallel(net, group);
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      alone->zero_grad();
      const auto a = random_tensor({2, 4}, group.rank());
      const auto b = random_tensor({5, 4}, 7 + group.rank());
      (ddp->forward(a).sum() + ddp->forward(b).square().sum()).backward();
      (alone->forward(a).sum() + alone->forward(b).square().sum()).backward();
      EXPECT_TRUE(torch::allclose(
          net->weight.grad(), exact_mean(group, alone->weight.grad())));
    }
  });
}

TEST(Ddp, SavedFilesAreThoseOfTheBareModule) {
  run_threads(2, [](const Group& group) {
    Net net;
    auto ddp = DistributedDataParallel(net, group);
    std::stringstream file;
    torch::save(ddp, file);
    Net bare;
    torch::load(bare, file);
    EXPECT_TRUE(test::same_bits(bare->fc->weight, net->fc->weight));
    // And back, with names that carry no prefix.
    test::fill_parameters(*bare, 77);
    std::stringstream again;
    torch::save(bare, again);
    torch::load(ddp, again);
    EXPECT_TRUE(test::same_bits(
        bare->fc->weight, ddp->named_parameters()["fc.weight"]));
  });
}

// torch::load exchanges the memory of parameters and silently cuts their ties
// to whoever listens for gradients.
TEST(Ddp, LoadingIntoAWrappedModuleKeepsItAveraging) {
  run_threads(2, [](const Group& group) {
    torch::nn::Linear saved(2, 2);
    test::fill_parameters(*saved, 9);
    std::stringstream file;
    torch::save(saved, file);
    for (const char* hook : {"none", "allreduce"}) {
      torch::nn::Linear net(2, 2);
      auto ddp = DistributedDataParallel(net, group, {.hook = hook});
      for (int turn = 0; turn < 3; ++turn) {
        std::stringstream copy(file.str());
        torch::load(net, copy);
        EXPECT_TRUE(test::same_bits(net->weight, saved->weight));
        ddp->zero_grad();
        ddp->forward(torch::full({1, 2}, 1.0 * group.rank())).sum().backward();
        EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 0.5);
      }
      EXPECT_EQ(ddp->stats().steps, 3);
    }
  });
}

TEST(Ddp, EvaluationWithoutGradientsIsLocal) {
  run_threads(2, [](const Group& group) {
    Net net;
    auto ddp = DistributedDataParallel(net, group);
    const auto input = torch::ones({3, 2, 8, 8});
    for (int turn = 0; turn < 2; ++turn) {
      if (group.rank() == 0) {
        const torch::NoGradGuard no_grad;
        EXPECT_EQ(ddp->forward(input).size(1), 5);
      }
      ddp->forward(input).sum().backward();
      EXPECT_TRUE(test::same_on_all_ranks(group, net->fc->weight.grad()));
    }
  });
}

TEST(Ddp, StatsCountStepsBucketsAndBytes) {
  run_threads(2, [](const Group& group) {
    torch::nn::Sequential net(
        torch::nn::Linear(100, 100), torch::nn::Linear(100, 100));
    auto ddp = DistributedDataParallel(
        net,
        group,
        {.hook = "allreduce",
         .bucket_cap_mb = 0.03,
         .first_bucket_cap_mb = 0.03});
    const std::int64_t elems = 2 * (100 * 100 + 100);
    for (int step = 0; step < 3; ++step) {
      ddp->forward(torch::ones({4, 100})).sum().backward();
    }
    const Stats stats = ddp->stats();
    EXPECT_EQ(stats.hook, "allreduce");
    EXPECT_EQ(stats.steps, 3);
    EXPECT_EQ(stats.parameters, elems);
    EXPECT_TRUE(stats.rebuilt);
    EXPECT_EQ(stats.bucket_bytes.size(), 2u);
    EXPECT_EQ(stats.bucket_bytes[0] + stats.bucket_bytes[1], elems * 4);
    // At W=2 the ring sends every element once, give or take one a bucket.
    EXPECT_EQ(stats.last.sent.payload, elems * 4);
    EXPECT_EQ(stats.last.sent.metadata, 0);
    const StepTimes times = times_of(stats.last);
    EXPECT_GT(times.forward_ms, 0);
    EXPECT_GT(times.backward_ms, 0);
    EXPECT_GE(times.backward_ms, times.exposed_ms);
    std::ostringstream text;
    text << stats;
    EXPECT_NE(text.str().find("3 steps"), std::string::npos);
    EXPECT_NE(text.str().find("exposed communication"), std::string::npos);
  });
}

TEST(Ddp, SeveralModulesInOneProcessDoNotMix) {
  run_threads(2, [](const Group& group) {
    torch::nn::Linear a(3, 3);
    torch::nn::Linear b(3, 3);
    auto first = DistributedDataParallel(a, group);
    auto second = DistributedDataParallel(b, group, {.hook = "allreduce"});
    for (int step = 0; step < 3; ++step) {
      const auto x = torch::full({1, 3}, group.rank() + 1.0);
      auto out_a = first->forward(x);
      auto out_b = second->forward(x);
      group.barrier().wait();
      (out_a.sum() + out_b.sum()).backward();
      EXPECT_FLOAT_EQ(b->weight.grad()[0][0].item<float>(), 1.5 * (step + 1));
      EXPECT_FLOAT_EQ(a->weight.grad()[0][0].item<float>(), 1.5 * (step + 1));
    }
  });
}

TEST(Ddp, TheModuleOutlivesItsWrapper) {
  run_threads(2, [](const Group& group) {
    torch::nn::Linear net(2, 2);
    at::Tensor output;
    {
      auto ddp = DistributedDataParallel(net, group);
      ddp->forward(torch::ones({1, 2})).sum().backward();
      output = ddp->forward(torch::ones({1, 2}));
    }
    net->zero_grad();
    net->forward(torch::full({1, 2}, 1.0 * group.rank())).sum().backward();
    EXPECT_EQ(net->weight.grad()[0][0].item<float>(), group.rank());
    auto again = DistributedDataParallel(net, group);
    net->zero_grad();
    again->forward(torch::full({1, 2}, 1.0 * group.rank())).sum().backward();
    EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 0.5);
  });
}

}  // namespace
}  // namespace gradwire
