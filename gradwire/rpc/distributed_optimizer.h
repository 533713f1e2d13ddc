#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/context.h"
#include "gradwire/rpc/remote.h"

namespace torch::optim {
struct AdagradOptions;
struct AdamOptions;
struct AdamWOptions;
struct SGDOptions;
}  // namespace torch::optim

namespace gradwire::rpc {

// How the gradients of several contexts are combined.
enum class Combine { kSum, kAverage };

class LocalOptimizer;

// Updates parameters where they live, with the gradients that contexts hold
// there: one of Torch's optimizers on every worker that owns some of them.
//
// A step makes one update per parameter. Each worker makes the steps of several
// trainers one after another. A step may happen between the forward and the
// backward of another trainer's context. With SGD that backward then uses the
// new values. The other optimizers tell autograd about their updates: that
// backward fails and says that a variable was modified. To avoid both, give the
// contexts of all trainers to one step.
class DistributedOptimizer {
 public:
  DistributedOptimizer(
      const std::vector<Remote<at::Tensor>>& parameters,
      const torch::optim::SGDOptions& options);
  DistributedOptimizer(
      const std::vector<Remote<at::Tensor>>& parameters,
      const torch::optim::AdamOptions& options);
  DistributedOptimizer(
      const std::vector<Remote<at::Tensor>>& parameters,
      const torch::optim::AdamWOptions& options);
  DistributedOptimizer(
      const std::vector<Remote<at::Tensor>>& parameters,
      const torch::optim::AdagradOptions& options);

  // Returns when all workers have made their updates. A parameter that got no
  // gradient stays as it is. Throws RemoteError when a worker does not know a
  // context, or for sparse gradients with an optimizer that takes none; that
  // worker has then changed nothing.
  void step(
      const std::vector<autograd::ContextId>& contexts,
      Combine combine = Combine::kSum) const;
  void step(const autograd::Context& context) const {
    step({context.id()});
  }

 private:
  template <class Options>
  void make(
      const std::vector<Remote<at::Tensor>>& parameters,
      const std::string& kind,
      const Options& options);

  // One on each owner.
  std::vector<Remote<LocalOptimizer>> locals_;
};

}  // namespace gradwire::rpc
