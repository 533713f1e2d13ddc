#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace gradwire {

// Replaces the outputs of a forward by tensors that share their memory but
// hang on one common node of the graph. A backward through any of them then
// reaches all of them, with undefined gradients where nothing flowed, so that
// the Reducer hears of every parameter. `on_backward` runs when it gets there.
// Outputs without a graph stay as they are.
void attach_sink(
    const std::vector<at::Tensor*>& outputs, std::function<void()> on_backward);

}  // namespace gradwire
