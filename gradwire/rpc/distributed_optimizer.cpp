#include "gradwire/rpc/distributed_optimizer.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <map>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/rpc/local_optimizer.h"

namespace gradwire::rpc {
namespace {

template <class Options>
std::string archive_of(const Options& options) {
  torch::serialize::OutputArchive archive;
  options.serialize(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

// Waits for all of them before it throws what went wrong first.
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
  const std::string archived = archive_of(options);
  for (const auto& [owner, owned] : by_owner) {
    locals_.push_back(Remote<LocalOptimizer>::create(
        owned.front().owner(), kind, archived, owned));
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
  for (const auto& local : locals_) {
    replies.push_back(local.invoke_async<&LocalOptimizer::step>(
        contexts, combine == Combine::kAverage));
  }
  wait_for_all(replies);
}

}  // namespace gradwire::rpc
