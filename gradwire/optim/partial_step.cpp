#include "gradwire/optim/partial_step.h"

#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <utility>

namespace gradwire {

// While it lives, the optimizer has only `members`, and those have the given
// gradients.
class PartialStep::Exchange {
 public:
  Exchange(PartialStep& step, const AveragedGradients& gradients)
      : step_(step) {
    former_.reserve(gradients.size());
    for (const auto& [parameter, gradient] : gradients) {
      if (step_.has(parameter)) {
        former_.push_back({parameter, gradient});
      }
    }
    exchange();
  }
  ~Exchange() {
    exchange();
  }
  Exchange(const Exchange&) = delete;

 private:
  void exchange() {
    auto& groups = step_.optimizer_.param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      groups[i].params().swap(step_.members_[i]);
    }
    for (auto& [parameter, gradient] : former_) {
      std::swap(parameter.mutable_grad(), gradient);
    }
  }

  PartialStep& step_;
  AveragedGradients former_;
};

PartialStep::PartialStep(torch::optim::Optimizer& optimizer)
    : optimizer_(optimizer) {
  refresh();
}

void PartialStep::refresh() {
  const auto& groups = optimizer_.param_groups();
  std::size_t count = 0;
  for (const auto& group : groups) {
    count += group.params().size();
  }
  if (count == groups_of_.size() && groups.size() == members_.size()) {
    return;
  }
  groups_of_.clear();
  members_.resize(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const auto& parameter : groups[i].params()) {
      groups_of_.emplace(parameter.unsafeGetTensorImpl(), i);
    }
  }
}

void PartialStep::step(const AveragedGradients& gradients) {
  for (auto& members : members_) {
    members.clear();
  }
  bool any = false;
  for (const auto& [parameter, gradient] : gradients) {
    const auto [first, last] =
        groups_of_.equal_range(parameter.unsafeGetTensorImpl());
    for (auto each = first; each != last; ++each) {
      members_[each->second].push_back(parameter);
      any = true;
    }
  }
  if (any) {
    const at::NoGradGuard no_grad;
    const Exchange exchange(*this, gradients);
    optimizer_.step();
  }
}

}  // namespace gradwire
