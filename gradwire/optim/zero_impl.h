#pragma once

// Private to gradwire: what a ZeroRedundancyOptimizer is made of. zero.cpp has
// its construction and its steps, zero_state.cpp what is kept of it.

#include <memory>
#include <unordered_map>
#include <vector>

#include "gradwire/comm/agreement.h"
#include "gradwire/comm/roll_call.h"
#include "gradwire/comm/spread.h"
#include "gradwire/optim/zero.h"
#include "gradwire/optim/zero_parameter.h"
#include "gradwire/optim/zero_record.h"

namespace gradwire {

struct ZeroRedundancyOptimizer::Impl {
  Impl(
      const Group& given,
      const SliceOptimizer& slice_optimizer,
      const ZeroOptions& zero_options);

  // Parameters that come together, until all ranks have agreed on them.
  struct Addition {
    std::vector<std::unique_ptr<ZeroParameter>> parameters;
    std::vector<std::unique_ptr<torch::optim::Optimizer>> locals;
    plan::ShardDealer dealer;
    plan::Shards shards;
  };
  // Of the groups from the first new one on. What is wrong on this rank is
  // thrown.
  Addition prepare(const Groups& all);
  std::vector<Fact> facts_of(const Addition& addition) const;
  void add(Addition addition);
  // What ranks send of the chosen ones, by parameter.
  std::shared_ptr<Spread> make_spread(const std::vector<bool>& chosen) const;

  void check_groups(const Groups& visible) const;
  void use_options(const Groups& visible);
  // The gradients of slices are parts of the `.grad` of parameters.
  void take_gradients();
  void drop_gradients();
  void step_slices();
  void step(const Groups& visible);
  // Parameters are as their owners have them, on all ranks.
  void note_written();

  const OptimizerKind& known_kind() const;
  ParameterState state_of_slice(const ZeroParameter& parameter) const;
  void set_state_of_slice(
      const ZeroParameter& parameter, const ParameterState& kept);
  ZeroRecord record(std::int64_t save) const;

  Group parent;
  // Of its own, from the constructor's end on.
  Group group;
  SliceOptimizer optimizer;
  ZeroOptions options;
  // Large parameters are cut between blocks of so many elements.
  std::int64_t cut = 0;
  bool encoded = false;

  plan::ShardDealer dealer;
  plan::Shards shards;
  std::vector<std::unique_ptr<ZeroParameter>> parameters;
  std::unordered_map<const void*, std::size_t> by_tensor;
  // By parameter group; what this rank steps of it.
  std::vector<std::unique_ptr<torch::optim::Optimizer>> locals;
  std::shared_ptr<const OptimizerKind> kind;

  std::unique_ptr<RollCall> roll_call;
  std::unique_ptr<Spreader> spreader;
  // All parameters.
  std::shared_ptr<Spread> all;

  bool gradients_agreed = false;
  bool overlapped = false;
  std::int64_t steps = 0;
};

}  // namespace gradwire
