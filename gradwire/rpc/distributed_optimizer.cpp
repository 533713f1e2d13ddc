#include "gradwire/rpc/distributed_optimizer.h"

#include <map>

#include "gradwire/base/error.h"
#include "gradwire/rpc/local_optimizer.h"
#include "gradwire/rpc/optimizer_options.h"

namespace gradwire::rpc {
namespace {

// Waits for all replies, then throws the first failure.
void wait_for_all(const std::vector<Reply<void>>& replies) {
  std::exception_ptr first;
  for (const auto& reply : replies) {
    try {
      reply.wait();
    } catch (const Error&) {
      first = first ? first : std::current_exception();
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace

template <class Options>
void DistributedOptimizer::make(
    const std::vector<Remote<at::Tensor>>& parameters,
    const std::string& kind,
    const Options& options) {
  if (parameters.empty()) {
    fail("rpc", "DistributedOptimizer got no parameters");
  }
  std::map<int, std::vector<Remote<at::Tensor>>> by_owner;
  for (const auto& parameter : parameters) {
    by_owner[parameter.hold().owner()].push_back(parameter);
  }
  const NamedNumbers numbers = numbers_of(options);
  for (const auto& [owner, owned] : by_owner) {
    locals_.push_back(Remote<LocalOptimizer>::create(
        owned.front().owner(), kind, numbers, owned));
  }
}

DistributedOptimizer::DistributedOptimizer(
    const std::vector<Remote<at::Tensor>>& parameters,
    const torch::optim::SGDOptions& options) {
  make(parameters, "SGD", options);
}

DistributedOptimizer::DistributedOptimizer(
    const std::vector<Remote<at::Tensor>>& parameters,
    const torch::optim::AdamOptions& options) {
  make(parameters, "Adam", options);
}

DistributedOptimizer::DistributedOptimizer(
    const std::vector<Remote<at::Tensor>>& parameters,
    const torch::optim::AdamWOptions& options) {
  make(parameters, "AdamW", options);
}

DistributedOptimizer::DistributedOptimizer(
    const std::vector<Remote<at::Tensor>>& parameters,
    const torch::optim::AdagradOptions& options) {
  make(parameters, "Adagrad", options);
}

void DistributedOptimizer::step(
    const std::vector<autograd::ContextId>& contexts, Combine combine) const {
  if (contexts.empty()) {
    fail("rpc", "DistributedOptimizer::step got no contexts");
  }
  std::vector<Reply<void>> replies;
  replies.reserve(locals_.size());
  for (const auto& local : locals_) {
    replies.push_back(local.invoke_async<&LocalOptimizer::step>(
        contexts, combine == Combine::kAverage));
  }
  wait_for_all(replies);
}

}  // namespace gradwire::rpc
