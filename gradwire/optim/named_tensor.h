#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace gradwire {

// A tensor of training that ranks exchange, with a name that is the same on all
// of them.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

using NamedTensorList = std::vector<NamedTensor>;

// What a DistributedDataParallel, or a holder of a module, trains; with its
// buffers on request. Tied parameters come once.
template <class Module>
NamedTensorList tensors_of(const Module& module, bool buffers = false) {
  NamedTensorList result;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      bool known = false;
      for (const NamedTensor& each : result) {
        known = known || each.tensor.is_same(item.value());
      }
      if (!known && item.value().defined()) {
        result.push_back({item.key(), item.value()});
      }
    }
  };
  add(module->named_parameters());
  if (buffers) {
    add(module->named_buffers());
  }
  return result;
}

}  // namespace gradwire
