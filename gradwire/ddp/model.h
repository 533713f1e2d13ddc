#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "gradwire/comm/agreement.h"
#include "gradwire/ddp/options.h"
#include "gradwire/hook/bucket.h"

namespace torch::nn {
class Module;
}

namespace gradwire {

// The wrapped module as DDP sees it: every tensor once, under the first name
// the module gives it, ignored ones left out.
struct Model {
  // Parameters that require a gradient, in the module's order.
  Parameters trainable;
  // Per trainable parameter: its gradient is sparse.
  std::vector<bool> sparse;
  // Those that do not.
  std::vector<at::Tensor> frozen;
  // Parameters and buffers that rank 0 hands out at construction.
  std::vector<at::Tensor> state;
  std::vector<at::Tensor> buffers;
  // What all ranks must see alike: names, types, shapes and strides.
  std::vector<Fact> facts;
};

// Name, type, shape and strides.
std::string describe(const std::string& name, const at::Tensor& tensor);

// Throws Error unless gradients of this tensor can be averaged here.
void check_device(const std::string& name, const at::Tensor& tensor);

// Throws Error for a module that cannot be trained data-parallel and for
// options that name what it does not have.
Model inspect_model(
    const torch::nn::Module& module,
    const DistributedDataParallelOptions& options);

}  // namespace gradwire
