#include "gradwire/hook/result.h"

#include <ATen/ops/clone.h>

#include "gradwire/base/error.h"

namespace gradwire {

// The Reducer reads a dense result from the start of its storage in steps of
// one, and gradients that it makes have the result's type. What is not like
// that is copied: a result of another type goes back into the Reducer's own
// buffer, which nobody else uses by now.
at::Tensor result_for(const at::Tensor& buffer, at::Tensor result) {
  if (buffer.is_sparse() && result.defined()) {
    return result;
  }
  const bool dense = result.defined() && result.layout() == at::kStrided;
  if (!dense || result.numel() != buffer.numel()) {
    fail(
        "hook",
        "the hook's result has ",
        dense ? result.numel() : 0,
        " elements, expected ",
        buffer.numel());
  }
  result = result.contiguous().view({-1});
  if (result.scalar_type() != buffer.scalar_type()) {
    return at::Tensor(buffer).copy_(result);
  }
  return result.storage_offset() == 0 ? result : result.clone();
}

}  // namespace gradwire
