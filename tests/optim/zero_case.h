#pragma once

// Optimizers beside their sharded selves, and parameters of many kinds.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/optim/zero.h"
#include "tests/support/tensors.h"

namespace gradwire::test {

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

// One optimizer with options that use all of its state.
struct OptimizerCase {
  std::string name;
  SliceOptimizer sliced;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const ParamGroups&)>
      plain;
};

template <class O, class Options>
OptimizerCase optimizer_case(const std::string& name, const Options& options) {
  return {name, sliced<O>(options), [options](const ParamGroups& groups) {
            return std::make_unique<O>(groups, options);
          }};
}

inline OptimizerCase adam_case() {
  return optimizer_case<torch::optim::Adam>(
      "Adam", torch::optim::AdamOptions(0.01).weight_decay(0.1).amsgrad(true));
}

inline OptimizerCase sgd_case() {
  return optimizer_case<torch::optim::SGD>(
      "SGD",
      torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(
          true));
}

inline std::vector<OptimizerCase> all_optimizers() {
  using namespace torch::optim;
  return {
      sgd_case(),
      adam_case(),
      optimizer_case<AdamW>("AdamW", AdamWOptions(0.01).weight_decay(0.1)),
      optimizer_case<Adagrad>(
          "Adagrad",
          AdagradOptions(0.05).lr_decay(0.1).initial_accumulator_value(0.2)),
      optimizer_case<RMSprop>(
          "RMSprop", RMSpropOptions(0.01).momentum(0.9).centered(true))};
}

// Large and small ones, no power of two, in an order of memory of their own,
// without elements and without dimensions.
inline std::vector<at::Tensor> mixed_parameters() {
  const auto make = [](at::IntArrayRef sizes, std::uint64_t seed) {
    return random_tensor(sizes, seed);
  };
  std::vector<at::Tensor> result{
      make({70, 131}, 1),
      make({16, 24, 3, 3}, 2).contiguous(at::MemoryFormat::ChannelsLast),
      make({131}, 3),
      make({300, 9}, 4).to(torch::kDouble),
      make({}, 5),
      make({0, 3}, 6),
      make({50, 40}, 7).t()};
  for (auto& tensor : result) {
    tensor.set_requires_grad(true);
  }
  return result;
}

inline std::vector<at::Tensor> copies_of(
    const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : parameters) {
    result.push_back(parameter.detach().clone().set_requires_grad(true));
  }
  return result;
}

// What the average over ranks would be: equal on all of them.
inline void give_gradients(
    const std::vector<at::Tensor>& parameters, std::uint64_t seed) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& like = parameters[i];
    at::Tensor gradient = at::empty_like(like.detach());
    if (like.is_complex()) {
      const auto parts = at::view_as_real(gradient);
      parts.copy_(random_tensor(parts.sizes(), 1000 * seed + i));
    } else {
      gradient.copy_(random_tensor(like.sizes(), 1000 * seed + i));
    }
    at::Tensor(like).mutable_grad() = gradient;
  }
}

inline void expect_same(
    const std::vector<at::Tensor>& parameters,
    const std::vector<at::Tensor>& expected,
    const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(same_bits(parameters[i], expected[i]))
        << what << ", parameter " << i;
  }
}

inline void expect_same_state(
    const OptimizerState& state, const OptimizerState& expected) {
  EXPECT_EQ(state.optimizer, expected.optimizer);
  ASSERT_EQ(state.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    const auto& mine = state.parameters[i];
    const auto& theirs = expected.parameters[i];
    EXPECT_EQ(mine.numbers, theirs.numbers);
    ASSERT_EQ(mine.tensors.size(), theirs.tensors.size()) << "parameter " << i;
    for (const auto& [name, tensor] : theirs.tensors) {
      EXPECT_TRUE(same_bits(mine.tensors.at(name), tensor))
          << name << " of parameter " << i;
    }
  }
}

}  // namespace gradwire::test
