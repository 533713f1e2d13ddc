#include "gradwire/optim/optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <mutex>
#include <type_traits>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

using AnyOptimizer = torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

// Calls visit(name, entry) for every entry of a state: a tensor, which may be
// undefined, or a count.
template <class Visit>
void visit_state(torch::optim::SGDParamState& state, const Visit& visit) {
  visit("momentum_buffer", state.momentum_buffer());
}

// Of Adam and AdamW.
template <class State, class Visit>
void visit_adam_state(State& state, const Visit& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
}
template <class Visit>
void visit_state(torch::optim::AdamParamState& state, const Visit& visit) {
  visit_adam_state(state, visit);
}
template <class Visit>
void visit_state(torch::optim::AdamWParamState& state, const Visit& visit) {
  visit_adam_state(state, visit);
}

template <class Visit>
void visit_state(torch::optim::AdagradParamState& state, const Visit& visit) {
  visit("step", state.step());
  visit("sum", state.sum());
}

template <class Visit>
void visit_state(torch::optim::RMSpropParamState& state, const Visit& visit) {
  visit("step", state.step());
  visit("square_avg", state.square_avg());
  visit("momentum_buffer", state.momentum_buffer());
  visit("grad_avg", state.grad_avg());
}

template <class State>
ParameterState read_state(OptimizerParamState& state) {
  ParameterState result;
  visit_state(static_cast<State&>(state), [&](const char* name, auto& entry) {
    if constexpr (std::is_same_v<std::decay_t<decltype(entry)>, at::Tensor>) {
      if (entry.defined()) {
        result.tensors[name] = entry;
      }
    } else {
      result.numbers[name] = entry;
    }
  });
  return result;
}

template <class State>
std::unique_ptr<OptimizerParamState> make_state(const ParameterState& from) {
  auto state = std::make_unique<State>();
  std::size_t taken = 0;
  visit_state(*state, [&](const char* name, auto& entry) {
    if constexpr (std::is_same_v<std::decay_t<decltype(entry)>, at::Tensor>) {
      if (const auto found = from.tensors.find(name);
          found != from.tensors.end()) {
        entry = found->second;
        ++taken;
      }
    } else if (const auto found = from.numbers.find(name);
               found != from.numbers.end()) {
      entry = found->second;
      ++taken;
    }
  });
  if (taken != from.tensors.size() + from.numbers.size()) {
    fail("optim", "the state of a parameter has entries of another optimizer");
  }
  return state;
}

template <class O, class State>
std::shared_ptr<const OptimizerKind> make_kind(const char* name) {
  return std::make_shared<const OptimizerKind>(OptimizerKind{
      .name = name,
      .is =
          [](const AnyOptimizer& optimizer) {
            return dynamic_cast<const O*>(&optimizer) != nullptr;
          },
      .read = read_state<State>,
      .make = make_state<State>});
}

struct KindTable {
  std::mutex mutex;
  // Those of users first: theirs may derive from Torch's.
  std::vector<std::shared_ptr<const OptimizerKind>> rows;
};

KindTable& kind_table() {
  using namespace torch::optim;
  static KindTable table{
      {},
      {make_kind<SGD, SGDParamState>("SGD"),
       make_kind<Adam, AdamParamState>("Adam"),
       make_kind<AdamW, AdamWParamState>("AdamW"),
       make_kind<Adagrad, AdagradParamState>("Adagrad"),
       make_kind<RMSprop, RMSpropParamState>("RMSprop")}};
  return table;
}

const OptimizerKind& known_kind(
    const std::shared_ptr<const OptimizerKind>& kind) {
  if (!kind) {
    fail(
        "optim",
        "the state of this optimizer has no known form: register_optimizer "
        "makes it known");
  }
  return *kind;
}

template <class Visit>
void for_each_parameter(AnyOptimizer& optimizer, const Visit& visit) {
  std::size_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      visit(index++, parameter);
    }
  }
}

// What the parameter is: tensors with one number per element must fit.
void check_fits(
    std::size_t index,
    const at::Tensor& parameter,
    const ParameterState& state) {
  for (const auto& [name, tensor] : state.tensors) {
    if (tensor.sizes() != parameter.sizes() ||
        tensor.scalar_type() != parameter.scalar_type()) {
      fail(
          "optim",
          "'",
          name,
          "' of parameter ",
          index,
          " is of ",
          tensor.scalar_type(),
          " ",
          tensor.sizes(),
          ", expected ",
          parameter.scalar_type(),
          " ",
          parameter.sizes());
    }
  }
}

}  // namespace

void register_optimizer(OptimizerKind kind) {
  KindTable& table = kind_table();
  const std::lock_guard lock(table.mutex);
  if (std::ranges::any_of(table.rows, [&](const auto& row) {
        return row->name == kind.name;
      })) {
    fail("optim", "there is an optimizer '", kind.name, "' already");
  }
  table.rows.insert(
      table.rows.begin(),
      std::make_shared<const OptimizerKind>(std::move(kind)));
}

std::shared_ptr<const OptimizerKind> find_optimizer_kind(
    const AnyOptimizer& optimizer) {
  KindTable& table = kind_table();
  const std::lock_guard lock(table.mutex);
  const auto found = std::ranges::find_if(
      table.rows, [&](const auto& row) { return row->is(optimizer); });
  return found == table.rows.end() ? nullptr : *found;
}

ParameterState parameter_state_of(
    AnyOptimizer& optimizer,
    const OptimizerKind& kind,
    const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? ParameterState()
                                          : kind.read(*found->second);
}

void set_parameter_state(
    AnyOptimizer& optimizer,
    const OptimizerKind& kind,
    const at::Tensor& parameter,
    const ParameterState& state) {
  if (state.empty()) {
    optimizer.state().erase(parameter.unsafeGetTensorImpl());
  } else {
    optimizer.state()[parameter.unsafeGetTensorImpl()] = kind.make(state);
  }
}

std::int64_t state_bytes(const ParameterState& state) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : state.tensors) {
    bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

OptimizerState state_of(AnyOptimizer& optimizer) {
  const auto kind = find_optimizer_kind(optimizer);
  OptimizerState state{known_kind(kind).name, {}};
  for_each_parameter(optimizer, [&](std::size_t, const at::Tensor& parameter) {
    state.parameters.push_back(parameter_state_of(optimizer, *kind, parameter));
  });
  return state;
}

void load_state(AnyOptimizer& optimizer, const OptimizerState& state) {
  const auto kind = find_optimizer_kind(optimizer);
  if (known_kind(kind).name != state.optimizer) {
    fail(
        "optim",
        "got the state of ",
        state.optimizer,
        ", expected that of ",
        kind->name);
  }
  std::size_t count = 0;
  for_each_parameter(
      optimizer, [&](std::size_t, const at::Tensor&) { ++count; });
  if (count != state.parameters.size()) {
    fail(
        "optim",
        "got the state of ",
        state.parameters.size(),
        " parameters, expected ",
        count);
  }
  // By parameter; with memory of its own and the parameter's strides.
  std::vector<ParameterState> copies(count);
  for_each_parameter(
      optimizer, [&](std::size_t i, const at::Tensor& parameter) {
        check_fits(i, parameter, state.parameters[i]);
        copies[i].numbers = state.parameters[i].numbers;
        for (const auto& [name, tensor] : state.parameters[i].tensors) {
          copies[i].tensors[name] =
              at::empty_like(parameter.detach()).copy_(tensor.detach());
        }
        kind->make(copies[i]);
      });
  for_each_parameter(
      optimizer, [&](std::size_t i, const at::Tensor& parameter) {
        set_parameter_state(optimizer, *kind, parameter, copies[i]);
      });
}

}  // namespace gradwire
