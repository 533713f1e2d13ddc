#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/bytes.h"
#include "gradwire/comm/group.h"
#include "gradwire/optim/named_tensor.h"
#include "gradwire/optim/optimizer_state.h"

namespace gradwire {

struct ZeroOptions {
  // On: every rank steps a slice of each large parameter. Off: parameters stay
  // whole, for optimizers that look at all elements of one (LAMB).
  bool split = true;
  // How parameters travel after a step: "none", or the spec of a codec
  // ("int8", "bf16"), which sends their change. Owners then keep their slices
  // in full, and what an encoding loses is part of the next change.
  std::string parameters = "none";
  // What errors and files call parameters; others go by their number.
  NamedTensorList names = {};
};

// What one rank holds and has sent.
struct ZeroStats {
  std::int64_t steps = 0;
  // Of the optimizer's tensors, where its kind is known (OptimizerKind).
  std::int64_t state_bytes = 0;
  // Of the parameters that this rank steps.
  std::int64_t parameter_bytes = 0;
  Bytes sent = {};
};

// The optimizer that steps a rank's slices: its type and default options.
class SliceOptimizer {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  template <std::derived_from<torch::optim::Optimizer> O, class Options>
  static SliceOptimizer of(const Options& defaults) {
    SliceOptimizer result;
    result.defaults_ = std::make_shared<Options>(defaults);
    result.make_ = [defaults](const Groups& groups) {
      return std::make_unique<O>(groups, defaults);
    };
    return result;
  }

  const torch::optim::OptimizerOptions& defaults() const {
    return *defaults_;
  }
  std::unique_ptr<torch::optim::Optimizer> make(const Groups& groups) const {
    return make_(groups);
  }

 private:
  std::shared_ptr<const torch::optim::OptimizerOptions> defaults_;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)> make_;
};

// `gradwire::sliced<torch::optim::Adam>(torch::optim::AdamOptions(1e-3))`
template <std::derived_from<torch::optim::Optimizer> O, class Options>
SliceOptimizer sliced(const Options& defaults) {
  return SliceOptimizer::of<O>(defaults);
}

// An optimizer whose state is dealt out over the ranks of a group: each rank
// steps its part of the parameters, about 1/W of them, and all ranks get what
// was stepped, with the same bits. To the bit what the optimizer by itself
// would give, for those that treat every element by itself.
//
// To the program it is an optimizer with all parameters: `param_groups()`,
// schedulers and `zero_grad()` work as ever; options are read at each step. All
// ranks have the same gradients when they step. Parameters without a gradient
// stay as they are.
//
// Not thread safe, and not copied or moved. The constructor, step(),
// add_param_group, saving and loading are collective. An Error leaves
// everything as it was; after a CommError the group is of no use.
class ZeroRedundancyOptimizer : public torch::optim::Optimizer {
 public:
  using Groups = SliceOptimizer::Groups;

  ZeroRedundancyOptimizer(
      const Group& group,
      const Groups& groups,
      const SliceOptimizer& optimizer,
      const ZeroOptions& options = {});
  ZeroRedundancyOptimizer(
      const Group& group,
      std::vector<at::Tensor> parameters,
      const SliceOptimizer& optimizer,
      const ZeroOptions& options = {})
      : ZeroRedundancyOptimizer(
            group,
            Groups{torch::optim::OptimizerParamGroup(std::move(parameters))},
            optimizer,
            options) {}
  ~ZeroRedundancyOptimizer() override;
  ZeroRedundancyOptimizer(ZeroRedundancyOptimizer&&) = delete;

  // Where it is overlapped with backward (zero_overlap) only calls the closure.
  at::Tensor step(LossClosure closure = nullptr) override;

  // The other parameters stay with the ranks that have them.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // The state, one file a rank in a folder that all ranks share. It loads in
  // any world: training goes on with the same bits. Options such as learning
  // rates are the program's.
  void save(const std::string& folder) const;
  void load(const std::string& folder);

  // The whole state on one rank, empty on the others: what `load_state` gives
  // to the optimizer by itself.
  OptimizerState consolidate(int rank = 0) const;
  // The reverse: every rank has the whole state, as `state_of` tells it.
  void load_state(const OptimizerState& state);

  ZeroStats stats() const;

  // Throw Error: an archive would hold one rank's part.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // For zero_overlap.
  struct Impl;
  const std::shared_ptr<Impl>& impl() const {
    return impl_;
  }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace gradwire
