#pragma once

// Models for tests of mixed precision.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire::test {

// A convolution keeps its weight itself for backward, a linear layer a view.
struct MixedNetImpl : torch::nn::Module {
  MixedNetImpl() {
    fill_parameters(*this, 3);
  }
  at::Tensor forward(const at::Tensor& x) {
    input = x.scalar_type();
    weight = conv->weight.scalar_type();
    return fc(torch::tanh(conv(x)).flatten(1));
  }
  torch::nn::Conv2d conv = register_module(
      "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 2, 3)));
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(8, 3));
  // In the last forward.
  at::ScalarType input = at::kFloat;
  at::ScalarType weight = at::kFloat;
};
TORCH_MODULE(MixedNet);

inline at::Tensor mixed_input(const Group& group, int step) {
  return random_tensor({2, 1, 4, 4}, 100 * group.rank() + step);
}
inline at::Tensor mixed_loss(const at::Tensor& output) {
  return output.to(torch::kFloat).square().sum();
}

inline void expect_masters(torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    EXPECT_EQ(item.value().scalar_type(), torch::kFloat) << item.key();
    const auto& gradient = item.value().grad();
    if (gradient.defined()) {
      EXPECT_EQ(gradient.scalar_type(), torch::kFloat) << item.key();
    }
  }
}

inline constexpr MixedPrecision kBf16{.parameters = at::kBFloat16};

inline const RankOptions kLocal{.transport = "local"};

}  // namespace gradwire::test
