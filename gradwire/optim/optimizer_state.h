#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gradwire {

// What an optimizer remembers of one parameter, by the names that torch::optim
// has for it ("exp_avg", "step"). Tensors are the optimizer's own, not copies.
struct ParameterState {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::int64_t> numbers;

  // It remembers nothing, as before the first step.
  bool empty() const {
    return tensors.empty() && numbers.empty();
  }
};

// How the state of one kind of optimizer is read and written: one row a kind.
struct OptimizerKind {
  // "Adam".
  std::string name;
  std::function<bool(const torch::optim::Optimizer&)> is;
  std::function<ParameterState(torch::optim::OptimizerParamState&)> read;
  // Throws Error for names that are not those of its state.
  std::function<std::unique_ptr<torch::optim::OptimizerParamState>(
      const ParameterState&)>
      make;
};

// Makes an optimizer of your own known. Throws Error when the name is taken.
// Thread safe.
void register_optimizer(OptimizerKind kind);

// SGD, Adam, AdamW, Adagrad, RMSprop and those registered; null for others.
// Thread safe.
std::shared_ptr<const OptimizerKind> find_optimizer_kind(
    const torch::optim::Optimizer& optimizer);

// The state of a whole optimizer, by parameter in the order of its groups.
struct OptimizerState {
  // The kind's name.
  std::string optimizer;
  std::vector<ParameterState> parameters;
};

// Throws Error for an optimizer whose kind is not known.
OptimizerState state_of(torch::optim::Optimizer& optimizer);
// Copies the state into an optimizer of the same kind with equal parameters:
// it goes on as the other one would have. Throws Error, and changes nothing,
// where kinds, counts, types or sizes differ.
void load_state(
    torch::optim::Optimizer& optimizer, const OptimizerState& state);

// Of one parameter, which may have no state.
ParameterState parameter_state_of(
    torch::optim::Optimizer& optimizer,
    const OptimizerKind& kind,
    const at::Tensor& parameter);
void set_parameter_state(
    torch::optim::Optimizer& optimizer,
    const OptimizerKind& kind,
    const at::Tensor& parameter,
    const ParameterState& state);

// Bytes of the tensors in it.
std::int64_t state_bytes(const ParameterState& state);

}  // namespace gradwire
