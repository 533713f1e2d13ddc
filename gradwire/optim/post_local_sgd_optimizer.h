#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "gradwire/optim/model_averager.h"

namespace torch::optim {
class Optimizer;
}

namespace gradwire {

// Steps an optimizer, then averages the model where it is time. Both must
// outlive it. Not thread safe; step() is collective.
class PostLocalSGDOptimizer {
 public:
  // For gradients that no DDP averages.
  PostLocalSGDOptimizer(
      torch::optim::Optimizer& inner, ModelAverager& averager);
  // `hook`: of the DDP, as `ddp->hook()` says. Throws Error unless it is
  // post_local_sgd with a `start` that is the averager's warm-up, or one that
  // leaves gradients local.
  PostLocalSGDOptimizer(
      torch::optim::Optimizer& inner,
      ModelAverager& averager,
      const std::string& hook);

  // Returns what the closure returns, if there is one.
  at::Tensor step(const std::function<at::Tensor()>& closure = nullptr);
  void zero_grad(bool set_to_none = true);

  torch::optim::Optimizer& inner() {
    return inner_;
  }
  ModelAverager& averager() {
    return averager_;
  }

  // Of the averager: see there. What the optimizer remembers is its owner's to
  // save, for every rank.
  void save(const std::string& folder) const {
    averager_.save(folder);
  }
  void load(const std::string& folder) {
    averager_.load(folder);
  }

 private:
  torch::optim::Optimizer& inner_;
  ModelAverager& averager_;
};

}  // namespace gradwire
