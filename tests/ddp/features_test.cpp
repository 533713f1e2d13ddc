// The less common shapes of models: frozen, tied, ignored, sparse, strided and
// mixed parameters; the order of buckets and what a step allocates.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "gradwire/ddp/ddp.h"
#include "tests/support/allocations.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::run_threads;

TEST(DdpFeatures, IndexAndIsLastAreRightInEveryIteration) {
  for (const bool static_graph : {false, true}) {
    run_threads(2, [&](const Group& group) {
      std::vector<std::pair<std::size_t, bool>> seen;
      const auto hook = [&](Bucket& bucket) {
        seen.emplace_back(bucket.index(), bucket.is_last());
        return group.all_reduce(bucket.buffer());
      };
      torch::nn::Sequential net;
      for (int i = 0; i < 6; ++i) {
        net->push_back(torch::nn::Linear(50, 50));
      }
      // Two types make two buckets already in the first iteration.
      net->push_back(torch::nn::Linear(50, 50));
      net[6]->to(torch::kDouble);
      struct Wrap : torch::nn::Module {
        explicit Wrap(torch::nn::Sequential n) {
          net = register_module("net", n);
        }
        at::Tensor forward(at::Tensor x) {
          for (int i = 0; i < 6; ++i) {
            x = net[i]->as<torch::nn::Linear>()->forward(x);
          }
          return net[6]->as<torch::nn::Linear>()->forward(x.to(torch::kDouble));
        }
        torch::nn::Sequential net{nullptr};
      };
      auto ddp = DistributedDataParallel(
          std::make_shared<Wrap>(net),
          group,
          {.hook = hook, .bucket_cap_mb = 0.01, .static_graph = static_graph});
      for (int step = 0; step < 4; ++step) {
        seen.clear();
        ddp->forward(torch::ones({2, 50})).sum().backward();
        ASSERT_GE(seen.size(), 2u);
        for (std::size_t i = 0; i < seen.size(); ++i) {
          EXPECT_EQ(seen[i].first, i) << "step " << step;
          EXPECT_EQ(seen[i].second, i + 1 == seen.size()) << "step " << step;
        }
      }
      EXPECT_GE(seen.size(), 4u);
    });
  }
}

TEST(DdpFeatures, StridedParametersKeepTheirPlaces) {
  run_threads(2, [](const Group& group) {
    torch::nn::Conv2d net(torch::nn::Conv2dOptions(3, 4, 2));
    {
      const torch::NoGradGuard no_grad;
      net->weight.set_data(
          net->weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
    test::fill_parameters(*net, 2);
    std::map<std::string, at::Tensor> seen;
    const auto hook = [&](Bucket& bucket) {
      auto future = group.all_reduce(bucket.buffer());
      future.wait();
      for (std::size_t i = 0; i < bucket.size(); ++i) {
        seen[bucket.parameter(i).name] = bucket.gradient(i).clone();
      }
      return future;
    };
    auto ddp = DistributedDataParallel(net, group, {.hook = hook});
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      ddp->forward(test::random_tensor({2, 3, 5, 5}, group.rank()))
          .square()
          .sum()
          .backward();
      ASSERT_FALSE(net->weight.is_contiguous());
      EXPECT_TRUE(torch::equal(seen.at("weight"), net->weight.grad()));
      EXPECT_TRUE(torch::equal(seen.at("bias"), net->bias.grad()));
    }
  });
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embed = register_parameter("embed", test::random_tensor({6, 4}, 4));
    head = register_parameter("head", embed);
  }
  at::Tensor forward(const at::Tensor& ids) {
    return embed.index_select(0, ids).matmul(head.t());
  }
  at::Tensor embed;
  at::Tensor head;
};
TORCH_MODULE(Tied);

TEST(DdpFeatures, TiedParametersCountOnce) {
  run_threads(2, [](const Group& group) {
    Tied net;
    ASSERT_EQ(net->parameters().size(), 2u);
    auto ddp = DistributedDataParallel(net, group, {.hook = "allreduce"});
    EXPECT_EQ(ddp->parameters().size(), 1u);
    EXPECT_EQ(ddp->stats().parameters, 24);
    Tied alone;
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      alone->zero_grad();
      const auto ids = torch::tensor({group.rank(), 3});
      ddp->forward(ids).square().sum().backward();
      alone->forward(ids).square().sum().backward();
      EXPECT_TRUE(torch::allclose(
          net->embed.grad(), test::exact_mean(group, alone->embed.grad())));
    }
  });
}

TEST(DdpFeatures, FrozenParametersAreSharedButNotReduced) {
  run_threads(2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
    test::fill_parameters(*net, group.rank());
    net[0]->as<torch::nn::Linear>()->weight.requires_grad_(false);
    auto ddp = DistributedDataParallel(net, group);
    const auto frozen = net->named_parameters()["0.weight"];
    EXPECT_TRUE(test::same_on_all_ranks(group, frozen));
    EXPECT_EQ(ddp->stats().parameters, 2 + 6);
    for (int step = 0; step < 2; ++step) {
      ddp->forward(torch::ones({1, 2})).sum().backward();
      EXPECT_FALSE(frozen.grad().defined());
    }
  });
}

TEST(DdpFeatures, IgnoredParametersAreLeftAlone) {
  run_threads(2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
    test::fill_parameters(*net, group.rank());
    auto ddp =
        DistributedDataParallel(net, group, {.ignore = {"0.weight", "0.bias"}});
    EXPECT_FALSE(
        test::same_on_all_ranks(group, net->named_parameters()["0.weight"]));
    EXPECT_TRUE(
        test::same_on_all_ranks(group, net->named_parameters()["1.weight"]));
    for (int step = 0; step < 2; ++step) {
      ddp->zero_grad();
      const auto x = torch::full({1, 2}, group.rank() + 1.0);
      ddp->forward(x).sum().backward();
      EXPECT_FALSE(test::same_on_all_ranks(
          group, net->named_parameters()["0.weight"].grad()));
      EXPECT_TRUE(test::same_on_all_ranks(
          group, net->named_parameters()["1.weight"].grad()));
    }
  });
}

TEST(DdpFeatures, MixedTypesGetBucketsOfTheirOwn) {
  run_threads(2, [](const Group& group) {
    struct Mixed : torch::nn::Module {
      Mixed() {
        a = register_module("a", torch::nn::Linear(2, 2));
        b = register_module("b", torch::nn::Linear(2, 2));
        b->to(torch::kDouble);
      }
      at::Tensor forward(const at::Tensor& x) {
        return b->forward(a->forward(x).to(torch::kDouble));
      }
      torch::nn::Linear a{nullptr};
      torch::nn::Linear b{nullptr};
    };
    auto net = std::make_shared<Mixed>();
    auto ddp = DistributedDataParallel(net, group, {.hook = "allreduce"});
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      const auto x = test::random_tensor({3, 2}, group.rank());
      ddp->forward(x).sum().backward();
      EXPECT_EQ(net->a->weight.grad().scalar_type(), torch::kFloat);
      EXPECT_EQ(net->b->weight.grad().scalar_type(), torch::kDouble);
      EXPECT_TRUE(test::same_on_all_ranks(group, net->a->weight.grad()));
      EXPECT_TRUE(test::same_on_all_ranks(group, net->b->weight.grad()));
    }
    EXPECT_EQ(ddp->stats().bucket_bytes.size(), 2u);
  });
}

struct RecommenderImpl : torch::nn::Module {
  RecommenderImpl() {
    embed = register_module(
        "embed",
        torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 4).sparse(true)));
    fc = register_module("fc", torch::nn::Linear(4, 1));
    test::fill_parameters(*this, 6);
  }
  at::Tensor forward(const at::Tensor& ids) {
    return fc->forward(embed->forward(ids));
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Recommender);

TEST(DdpFeatures, SparseEmbeddingGradients) {
  for (const char* hook : {"none", "allreduce"}) {
    run_threads(3, [&](const Group& group) {
      Recommender net;
      Recommender alone;
      auto ddp = DistributedDataParallel(net, group, {.hook = hook});
      torch::optim::SGD sgd(ddp->parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        sgd.zero_grad();
        alone->zero_grad();
        {
          const torch::NoGradGuard no_grad;
          alone->embed->weight.copy_(net->embed->weight);
          alone->fc->weight.copy_(net->fc->weight);
          alone->fc->bias.copy_(net->fc->bias);
        }
        const auto ids = torch::tensor({group.rank(), 7, 7, 10 + step});
        ddp->forward(ids).square().sum().backward();
        alone->forward(ids).square().sum().backward();
        ASSERT_TRUE(net->embed->weight.grad().is_sparse());
        EXPECT_TRUE(torch::allclose(
            net->embed->weight.grad().to_dense(),
            test::exact_mean(group, alone->embed->weight.grad().to_dense())));
        EXPECT_TRUE(torch::allclose(
            net->fc->weight.grad(),
            test::exact_mean(group, alone->fc->weight.grad())));
        sgd.step();
      }
      EXPECT_TRUE(test::same_on_all_ranks(group, net->embed->weight));
      EXPECT_GT(ddp->stats().last.sent.metadata, 0);
    });
  }
}

// Autograd makes gradient-sized tensors of its own; averaging adds none to
// them.
TEST(DdpFeatures, NothingGradientSizedIsAllocatedAfterWarmUp) {
  for (const char* hook : {"none", "allreduce", "noop"}) {
    for (const bool view : {false, true}) {
      run_threads(2, [&](const Group& group) {
        torch::nn::Linear bare(512, 512);
        torch::nn::Linear net(512, 512);
        auto ddp = DistributedDataParallel(
            net, group, {.hook = hook, .gradient_as_bucket_view = view});
        const auto bare_step = [&] {
          bare->zero_grad(/*set_to_none=*/false);
          bare->forward(torch::ones({1, 512})).sum().backward();
        };
        const auto ddp_step = [&] {
          ddp->zero_grad(/*set_to_none=*/false);
          ddp->forward(torch::ones({1, 512})).sum().backward();
        };
        for (int step = 0; step < 3; ++step) {
          bare_step();
          ddp_step();
        }
        const int alone = test::large_allocations_of(bare_step);
        EXPECT_GT(alone, 0);
        EXPECT_EQ(test::large_allocations_of(ddp_step), alone)
            << hook << (view ? ", bucket view" : "");
      });
    }
  }
}

// A module may return a parameter itself. A leaf keeps what is hung on it.
TEST(DdpFeatures, LeavesAsOutputsCollectNothing) {
  struct Net : torch::nn::Module {
    Net() {
      w = register_parameter("w", torch::ones({4}));
    }
    at::Tensor forward() {
      return w;
    }
    at::Tensor w;
  };
  test::run_threads(2, [](const Group& group) {
    auto ddp = DistributedDataParallel(std::make_shared<Net>(), group);
    for (int i = 0; i < 3; ++i) {
      ddp->forward().sum().backward();
    }
    EXPECT_EQ(torch::autograd::impl::hooks(ddp->module()->w).size(), 0u);
    EXPECT_GT(times_of(ddp->stats().last).backward_ms, 0);
  });
}

}  // namespace
}  // namespace gradwire
