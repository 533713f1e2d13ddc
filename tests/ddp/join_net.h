#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/join.h"
#include "tests/support/ranks.h"

// A model with buffers and its training, equal on every rank, for tests of
// Join.

namespace gradwire::test {

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return second(torch::tanh(norm(first(x))));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 3));
  torch::nn::BatchNorm1d norm =
      register_module("norm", torch::nn::BatchNorm1d(3));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(3, 2));
  int calls = 0;
};
TORCH_MODULE(Net);

inline at::Tensor input(int rank, int step) {
  // Ranks are threads and share the default generator.
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * rank + step);
  return torch::randn({5, 4}, generator);
}

// The same on every rank.
template <class Module = Net>
Module make_net(int seed) {
  Module net;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(torch::randn(parameter.sizes(), generator));
  }
  return net;
}

using Ddp = DistributedDataParallel<Net>;

// Rank r has inputs[r] batches.
inline void train(
    const Ddp& ddp, const Group& group, const std::vector<int>& inputs) {
  torch::optim::SGD sgd(ddp->parameters(), 0.1);
  for (int step = 0; step < inputs.at(group.rank()); ++step) {
    sgd.zero_grad();
    ddp->forward(input(group.rank(), step)).square().sum().backward();
    sgd.step();
  }
}

inline at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const auto& tensor : tensors) {
    parts.push_back(tensor.detach().flatten().to(torch::kDouble));
  }
  return torch::cat(parts);
}

inline at::Tensor state_of(Net net) {
  auto tensors = net->parameters();
  const auto buffers = net->buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return flat(tensors);
}

inline void expect_equal_on_all_ranks(
    const Group& group, const at::Tensor& tensor) {
  auto all = torch::empty({group.size() * tensor.numel()}, tensor.options());
  group.all_gather(all, tensor.contiguous()).wait();
  for (const auto& part : all.view({group.size(), -1}).unbind()) {
    EXPECT_TRUE(torch::equal(part, tensor));
  }
}

}  // namespace gradwire::test
