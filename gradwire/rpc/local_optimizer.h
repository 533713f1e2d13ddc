#pragma once

// Private to rpc: the part of a DistributedOptimizer on one worker.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/context.h"
#include "gradwire/rpc/remote.h"

namespace torch::optim {
class Optimizer;
}

namespace gradwire::rpc {

// Thread safe: all optimizers on this worker make their steps one after
// another.
class LocalOptimizer {
 public:
  // `kind` is the name of a class of torch::optim, `options` its options by
  // name. Throws Error for options that are not of that class.
  LocalOptimizer(
      const std::string& kind,
      const std::map<std::string, double>& options,
      const std::vector<Remote<at::Tensor>>& parameters);
  ~LocalOptimizer();

  void step(const std::vector<autograd::ContextId>& contexts, bool average);

 private:
  std::vector<at::Tensor> gradients(
      const std::vector<autograd::ContextId>& contexts, bool average) const;
  void check(const at::Tensor& gradient) const;

  std::string kind_;
  double weight_decay_ = 0;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

void register_local_optimizer();

}  // namespace gradwire::rpc
