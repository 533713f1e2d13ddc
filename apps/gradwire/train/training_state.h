#pragma once

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <string>

namespace gradwire::apps {

// A model and its optimizer as a checkpoint keeps them: parameters, buffers,
// momentum, by name.
std::string pack_state(torch::nn::Module& module, torch::optim::SGD& sgd);

// Throws Error for bytes that are damaged or of another model, and then changes
// nothing. The bytes are data: nothing in them can run.
void unpack_state(
    const std::string& bytes,
    torch::nn::Module& module,
    torch::optim::SGD& sgd);

}  // namespace gradwire::apps
