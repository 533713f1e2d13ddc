#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

#include "gradwire/optim/optimizer_state.h"

namespace gradwire::apps {

// A model and its optimizer as a checkpoint keeps them: parameters and buffers
// by name, and what the optimizer remembers.
std::string pack_state(
    torch::nn::Module& module, const OptimizerState& optimizer);

// Throws Error for bytes that are damaged or of another model, and then changes
// nothing. `take` is given the optimizer's state, and throws where it does not
// fit. The bytes are data: nothing in them can run.
void unpack_state(
    const std::string& bytes,
    torch::nn::Module& module,
    const std::function<void(const OptimizerState&)>& take);

}  // namespace gradwire::apps
