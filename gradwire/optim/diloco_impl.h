#pragma once

// Private to gradwire: what a DiLoCo is made of.

#include <optional>

#include "gradwire/optim/diloco.h"
#include "gradwire/optim/tensor_exchange.h"

namespace gradwire {

struct DiLoCo::Impl {
  // Parameters that are exchanged together. Anchors and momenta are as large as
  // the rooms.
  struct Fragment {
    NamedTensorList parameters;
    NamedTensorList anchors = {};
    NamedTensorList momenta = {};
    // Ranks have different parameters.
    bool apart = false;
  };

  // The fragment that is on its way.
  struct Pending {
    std::size_t fragment = 0;
    // Step in which it is to arrive.
    std::int64_t due = 0;
    // Its average is in the rooms already.
    bool arrived = false;
  };

  Impl(
      const Group& group,
      const NamedTensorList& parameters,
      const DiLoCoOptions& options);

  std::vector<Fact> check_arguments() const;
  void make_fragments();
  // Everybody begins with the first rank's parameters.
  void make_anchors(std::size_t fragment);

  void step();
  bool is_due(std::size_t fragment) const;
  void start(std::size_t fragment);
  void arrive();
  void outer_step(std::size_t fragment);
  void finish();

  // Of all fragments.
  NamedTensorList all(NamedTensorList Fragment::*tensors) const;
  HookOwner owner() const;
  HookState save();
  void check(const HookState& state) const;
  void load(const HookState& state);
  // The rooms of a fragment, with the names of its parameters.
  NamedTensorList rooms_of(std::size_t fragment) const;

  Group group;
  NamedTensorList parameters;
  DiLoCoOptions options;
  std::vector<Fragment> fragments;
  std::unique_ptr<TensorExchange> exchange;
  std::optional<Pending> pending;
  std::int64_t steps = 0;
  std::int64_t outer_steps = 0;
};

}  // namespace gradwire
