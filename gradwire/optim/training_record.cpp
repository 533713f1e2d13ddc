#include "gradwire/optim/training_record.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <numeric>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

template <class Map>
void add_named(Map& to, const std::string& prefix, const Map& from) {
  for (const auto& [name, value] : from) {
    to[prefix + name] = value;
  }
}

template <class Map>
Map take_named(const Map& from, const std::string& prefix) {
  Map result;
  for (const auto& [name, value] : from) {
    if (name.starts_with(prefix)) {
      result[name.substr(prefix.size())] = value;
    }
  }
  return result;
}

}  // namespace

HookState shared_copies_of(const NamedTensorList& tensors) {
  HookState state;
  for (const auto& [name, tensor] : tensors) {
    state.shared[name] = tensor.detach().clone();
  }
  return state;
}

void copy_into(const NamedTensorList& tensors, const HookState& state) {
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    at::Tensor(tensor).copy_(state.shared.at(name));
  }
}

void add_part(
    HookState& state, const std::string& name, const HookState& part) {
  add_named(state.numbers, name + "/", part.numbers);
  add_named(state.shared, name + "/", part.shared);
  add_named(state.residuals, name + "/", part.residuals);
}

HookState take_part(const HookState& state, const std::string& name) {
  return {
      take_named(state.numbers, name + "/"),
      take_named(state.shared, name + "/"),
      take_named(state.residuals, name + "/")};
}

void check_part(
    const std::string& part,
    const HookState& state,
    const NamedTensorList& expected) {
  const auto got = take_part(state, part).shared;
  for (const auto& [name, tensor] : expected) {
    const auto found = got.find(name);
    if (found == got.end() || found->second.sizes() != tensor.sizes() ||
        found->second.scalar_type() != tensor.scalar_type()) {
      fail(
          "optim",
          "the state has no '",
          part,
          "' of type ",
          tensor.scalar_type(),
          " and sizes ",
          tensor.sizes(),
          " for '",
          name,
          "'");
    }
  }
  if (got.size() != expected.size()) {
    fail("optim", "the state has '", part, "' of other tensors");
  }
}

void check_number(
    const HookState& state, const std::string& name, std::int64_t expected) {
  const auto found = state.numbers.find(name);
  if (found == state.numbers.end() || found->second != expected) {
    fail(
        "optim",
        "the state was saved with ",
        name,
        " ",
        found == state.numbers.end() ? "unknown" : concat(found->second),
        ", expected ",
        expected);
  }
}

std::int64_t number_in(
    const HookState& state, const std::string& name, std::int64_t least) {
  const auto found = state.numbers.find(name);
  if (found == state.numbers.end() || found->second < least) {
    fail("optim", "the state has no number '", name, "' of at least ", least);
  }
  return found->second;
}

HookOwner owner_of(
    const std::string& what,
    const NamedTensorList& tensors,
    const std::string& file) {
  HookOwner owner{what, {}, file};
  for (const auto& [name, tensor] : tensors) {
    owner.parameters[name] = Parameter{name, tensor}.reals();
  }
  return owner;
}

SavedHook saved_with(const NamedTensorList& tensors, HookState state) {
  std::vector<std::int64_t> all(tensors.size());
  std::iota(all.begin(), all.end(), 0);
  return {{all}, std::move(state)};
}

}  // namespace gradwire
