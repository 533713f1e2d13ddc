#pragma once

// Autograd nodes across Torch versions: shared_ptr up to 2.12, intrusive_ptr
// from 2.13 on.

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace gradwire::compat {

using NodePtr =
    std::remove_cvref_t<decltype(torch::autograd::impl::grad_accumulator(
        std::declval<const at::Tensor&>()))>;

template <class N, class... Args>
auto make_node(Args&&... args) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  return c10::make_intrusive<N>(std::forward<Args>(args)...);
#else
  return std::shared_ptr<N>(
      new N(std::forward<Args>(args)...), torch::autograd::deleteNode);
#endif
}

// Makes `accumulator` the one that gradients of `leaf` go through.
inline void set_accumulator(
    const at::Tensor& leaf, const NodePtr& accumulator) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  torch::autograd::impl::set_grad_accumulator(
      leaf, c10::weak_intrusive_ptr<torch::autograd::Node>(accumulator));
#else
  torch::autograd::impl::set_grad_accumulator(leaf, accumulator);
#endif
}

}  // namespace gradwire::compat
