#pragma once

// Private to rpc: values of messages, read as plain data.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

namespace gradwire::rpc {

// The value that a peer pickled, with the tensors that came along. Throws Error
// for anything but plain data: see base/pickle.h.
c10::IValue unpickle(
    std::string_view bytes, const std::vector<at::Tensor>& tensors);

// Throws Error for tensors that reach beyond the bytes that came with them, or
// are not of a kind that workers send. Not every Torch checks that.
void check_received(const std::vector<at::Tensor>& tensors);

}  // namespace gradwire::rpc
