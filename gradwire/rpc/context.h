#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

// One backward through models whose parts live on several workers.
namespace gradwire::autograd {

using ContextId = std::int64_t;

// While a Context exists, calls made on this thread (and calls that their
// handlers make) record how gradients flow back, and backward leaves gradients
// in the Context instead of in `.grad`. A thread has at most one at a time and
// destroys it itself; all workers that took part then forget it.
//
// Every tensor that requires a gradient and crosses between workers under a
// context must be part of the loss: backward waits for its gradient, and fails
// after the worker's timeout when none comes.
class Context {
 public:
  Context();
  ~Context();
  Context(const Context&) = delete;

  // The same on all workers: pass it to functions that want this context's
  // gradients.
  ContextId id() const {
    return id_;
  }

 private:
  ContextId id_;
};

// Computes the gradients of the sum of `roots`, each of one element, for all
// leaves on all workers that took part. They add up over several calls. A DDP
// whose forward ran under the context averages its gradients as usual. Throws
// what goes wrong anywhere: a CommError for a worker that is lost.
void backward(
    const Context& context,
    const std::vector<at::Tensor>& roots,
    bool retain_graph = false);

// The gradients that a context holds on this worker.
class Gradients {
 public:
  explicit Gradients(const c10::Dict<at::Tensor, at::Tensor>& gradients);

  // Undefined for a leaf without a gradient.
  at::Tensor of(const at::Tensor& leaf) const;
  std::size_t size() const;

 private:
  c10::Dict<at::Tensor, at::Tensor> gradients_;
};

Gradients gradients(const Context& context);
// For functions that are called with a context's id. Throws Error if this
// worker does not know the context: it took no part, or the context has ended.
Gradients gradients(ContextId context);

}  // namespace gradwire::autograd
