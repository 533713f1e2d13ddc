#pragma once

// Private to gradwire.

#include <unordered_map>
#include <vector>

#include "gradwire/optim/averaged_bucket.h"

namespace torch::optim {
class Optimizer;
}

namespace gradwire {

// Steps some parameters of an optimizer, with gradients that need not be in
// `.grad`: to the optimizer it looks as if it had only these. Its options are
// read at each step and its state stays its own, so schedules, parameter groups
// and checkpoints work as ever. For optimizers that treat every parameter by
// itself, as all of torch::optim do but LBFGS. Not thread safe.
class PartialStep {
 public:
  // The optimizer must live longer.
  explicit PartialStep(torch::optim::Optimizer& optimizer);

  bool has(const at::Tensor& parameter) const {
    return groups_of_.contains(parameter.unsafeGetTensorImpl());
  }
  // Between two steps: parameters may have been added to the optimizer.
  void refresh();

  // Gradients of parameters that the optimizer does not have are left out. When
  // it returns or throws, `.grad` and the optimizer's groups are as before.
  void step(const AveragedGradients& gradients);

 private:
  class Exchange;

  torch::optim::Optimizer& optimizer_;
  // As many groups as a parameter is in, and as often.
  std::unordered_multimap<const void*, std::size_t> groups_of_;
  // By group: those that step. Kept for its memory.
  std::vector<std::vector<at::Tensor>> members_;
};

}  // namespace gradwire
