#pragma once

// Private to gradwire: what a ModelAverager is made of.

#include "gradwire/optim/first_rank.h"
#include "gradwire/optim/model_averager.h"
#include "gradwire/optim/tensor_exchange.h"

namespace gradwire {

struct ModelAverager::Impl {
  // Ranks that are averaged with each other, and what that takes.
  struct Tier {
    Level level;
    std::unique_ptr<TensorExchange> exchange;
    // What these ranks had after the last average, where changes are sent. Of
    // the types and sizes of the rooms.
    NamedTensorList anchors = {};
  };

  Impl(
      const Group& group,
      const NamedTensorList& tensors,
      const ModelAveragerOptions& options,
      const std::vector<Level>& levels,
      const std::string& name);

  std::vector<Fact> check_arguments(const std::vector<Level>& levels) const;
  void check_levels(const std::vector<Level>& levels) const;
  void make_anchors();
  bool sends_changes() const {
    return !tiers.back().anchors.empty();
  }

  void average(std::size_t tier);
  void fill_rooms(const Tier& tier) const;
  void take_rooms(std::size_t tier);

  HookOwner owner() const;
  HookState save() const;
  void check(const HookState& state) const;
  void load(const HookState& state);

  Group group;
  NamedTensorList tensors;
  ModelAveragerOptions options;
  std::string name;
  NamedTensorList averaged;
  std::unique_ptr<FirstRank> others;
  std::vector<Tier> tiers;
  std::int64_t step = 0;
  std::int64_t averages = 0;
};

}  // namespace gradwire
