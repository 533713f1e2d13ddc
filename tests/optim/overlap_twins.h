#pragma once

// The same training twice, with a plain optimizer and with an overlapped one.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/ddp/ddp.h"
#include "gradwire/optim/optimizer_overlap.h"
#include "tests/support/tensors.h"

namespace gradwire::test {

using Groups = std::vector<std::vector<at::Tensor>>;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using MakeOptimizer = std::function<OptimizerPtr(const Groups&)>;

// `Options` are set for all groups.
template <class Optimizer, class Options>
MakeOptimizer maker(const Options& options) {
  return [options](const Groups& groups) -> OptimizerPtr {
    std::vector<torch::optim::OptimizerParamGroup> result;
    for (const auto& group : groups) {
      result.emplace_back(group, std::make_unique<Options>(options));
    }
    return std::make_unique<Optimizer>(result, options);
  };
}

// Every kind of dense parameter: a channels_last weight, a complex one, a tied
// one, and one of another branch.
struct Varied : torch::nn::Module {
  Varied() {
    {
      const torch::NoGradGuard no_grad;
      conv->weight.set_data(
          conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
    // A complex copy would lose its imaginary part.
    fill_parameters(*this, 1);
    const torch::NoGradGuard no_grad;
    complex.copy_(torch::complex(
        random_tensor({4}, 90).mul_(0.3), random_tensor({4}, 91).mul_(0.3)));
  }
  at::Tensor forward(const at::Tensor& x, bool left = true, bool right = true) {
    auto y = conv(x).mean({2, 3});
    if (left) {
      const auto z = y * complex;
      y = torch::real(z) + torch::imag(z).square();
    }
    y = torch::tanh(torch::matmul(y, square));
    y = torch::tanh(torch::matmul(y, square));
    return right ? last(y) : y;
  }
  torch::nn::Conv2d conv =
      register_module("conv", torch::nn::Conv2d(3, 4, /*kernel_size=*/3));
  at::Tensor complex =
      register_parameter("complex", torch::zeros({4}, torch::kComplexFloat));
  at::Tensor square = register_parameter("square", torch::zeros({4, 4}));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(4, 3));
};

inline at::Tensor images(int rank, int step) {
  return random_tensor({2, 3, 5, 5}, 1000 * (rank + 1) + step);
}

// Two copies of a net, one with each. What they do is the same but for step().
template <class Net>
struct Twins {
  using Ddp = DistributedDataParallel<std::shared_ptr<Net>>;
  using Split = std::function<Groups(Net&)>;

  static Groups one_group(Net& net) {
    return {net.parameters()};
  }

  Twins(
      const Group& group,
      const std::string& hook,
      const MakeOptimizer& make,
      DistributedDataParallelOptions options = {},
      const OverlapOptions& overlap = {},
      const Split& split = one_group)
      : plain_net(std::make_shared<Net>()),
        net(std::make_shared<Net>()),
        plain_optimizer(make(split(*plain_net))),
        optimizer(make(split(*net))) {
    options.bucket_cap_mb = 0.00005;
    options.first_bucket_cap_mb = 0.00005;
    options.hook = hook;
    plain.emplace(plain_net, group, options);
    options.hook = optimizer_overlap(hook, *optimizer, overlap);
    ddp.emplace(net, group, options);
  }

  // `loss` runs with each of the two DDPs.
  void step(const std::function<at::Tensor(Ddp&)>& loss) {
    plain_optimizer->zero_grad();
    loss(*plain).backward();
    if (before_step) {
      before_step(plain_net->parameters());
    }
    plain_optimizer->step();
    optimizer->zero_grad();
    loss(*ddp).backward();
  }

  // Bit for bit.
  void expect_same(bool gradients = true) const {
    const auto names = net->named_parameters().keys();
    const auto expected = plain_net->parameters();
    const auto own = net->parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(same_bits(own[i], expected[i])) << names[i];
      if (gradients) {
        const auto& gradient = expected[i].grad();
        EXPECT_EQ(own[i].grad().defined(), gradient.defined()) << names[i];
        EXPECT_TRUE(
            !gradient.defined() || gradient.is_sparse() ||
            same_bits(own[i].grad(), gradient))
            << names[i];
      }
    }
  }

  std::shared_ptr<Net> plain_net;
  std::shared_ptr<Net> net;
  OptimizerPtr plain_optimizer;
  OptimizerPtr optimizer;
  std::optional<Ddp> plain;
  std::optional<Ddp> ddp;
  // What the plain training does with gradients.
  std::function<void(const std::vector<at::Tensor>&)> before_step;
};

}  // namespace gradwire::test
