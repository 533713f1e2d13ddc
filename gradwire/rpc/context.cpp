#include "gradwire/rpc/context.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>

#include "gradwire/base/error.h"
#include "gradwire/rpc/agent_impl.h"
#include "gradwire/rpc/answer.h"

namespace gradwire::autograd {
namespace {

namespace torch_autograd = torch::distributed::autograd;

torch_autograd::DistAutogradContainer& container() {
  rpc::running_agent();  // throws when there is none
  return torch_autograd::DistAutogradContainer::getInstance();
}

[[noreturn]] void throw_backward_error(
    const std::string& text, const rpc::WorkerInfo& self) {
  const auto what = concat(
      "[gradwire.autograd] backward failed: ",
      text,
      " (worker '",
      self.name,
      "')");
  if (rpc::is_transport_failure(text)) {
    throw CommError(what);
  }
  throw Error(what);
}

}  // namespace

Context::Context() {
  if (container().hasValidContext()) {
    fail(
        "autograd",
        "this thread is in context ",
        torch_autograd::DistAutogradContainer::currentContextId(),
        " already, expected one context a thread at a time");
  }
  id_ = container().newContext()->contextId();
}

Context::~Context() {
  try {
    torch_autograd::DistAutogradContainer::getInstance()
        .releaseContextIfPresent(id_);
  } catch (const std::exception&) {
    // The other workers are lost, and the context with them.
  }
}

void backward(
    const Context& context,
    const std::vector<at::Tensor>& roots,
    bool retain_graph) {
  container();
  const rpc::WorkerInfo self = rpc::self();
  if (roots.empty()) {
    fail("autograd", "backward got no roots");
  }
  for (const auto& root : roots) {
    if (!root.defined() || root.numel() != 1 || !root.requires_grad()) {
      fail(
          "autograd",
          "backward got a root ",
          !root.defined()     ? "that is undefined"
          : root.numel() != 1 ? concat("of ", root.numel(), " elements")
                              : std::string("that does not require a gradient"),
          ", expected tensors of one element that require one");
    }
  }
  try {
    torch_autograd::DistEngine::getInstance().execute(
        context.id(), roots, retain_graph);
  } catch (const Error&) {
    throw;  // of a DDP's hook
  } catch (const c10::Error& e) {
    throw_backward_error(first_line(e.what_without_backtrace()), self);
  } catch (const std::exception& e) {
    throw_backward_error(first_line(e.what()), self);
  }
}

Gradients::Gradients(const c10::Dict<at::Tensor, at::Tensor>& gradients)
    : gradients_(gradients) {}

at::Tensor Gradients::of(const at::Tensor& leaf) const {
  const auto found = gradients_.find(leaf);
  return found == gradients_.end() ? at::Tensor() : found->value();
}

std::size_t Gradients::size() const {
  return gradients_.size();
}

Gradients gradients(const Context& context) {
  return gradients(context.id());
}

Gradients gradients(ContextId context) {
  try {
    return Gradients(container().retrieveContext(context)->getGradients());
  } catch (const c10::Error&) {
    fail(
        "autograd",
        "context ",
        context,
        " is not known on worker '",
        rpc::self().name,
        "': it has ended, or no call under it reached this worker");
  }
}

}  // namespace gradwire::autograd
