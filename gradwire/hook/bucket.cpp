#include "gradwire/hook/bucket.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/view_as_complex.h>

#include "gradwire/base/error.h"

namespace gradwire {

Bucket::Bucket(
    std::size_t index,
    bool is_last,
    at::Tensor buffer,
    std::vector<std::shared_ptr<const Parameter>> parameters)
    : index_(index),
      is_last_(is_last),
      buffer_(std::move(buffer)),
      parameters_(std::move(parameters)) {}

bool Bucket::is_sparse() const {
  return buffer_.is_sparse();
}

std::int64_t Bucket::elems(std::size_t i) const {
  const at::Tensor& parameter = parameters_.at(i)->tensor;
  // The Reducer flattens complex gradients into pairs of real numbers.
  const bool pairs = parameter.is_complex() && !buffer_.is_complex();
  return parameter.numel() * (pairs ? 2 : 1);
}

at::Tensor Bucket::gradient(std::size_t i) const {
  const at::Tensor& parameter = parameters_.at(i)->tensor;
  if (is_sparse()) {
    return buffer_;
  }
  std::int64_t offset = buffer_.storage_offset();
  at::Tensor flat = buffer_;
  if (parameter.is_complex() && !buffer_.is_complex()) {
    flat = at::view_as_complex(buffer_.view({-1, 2}));
    offset = flat.storage_offset();
  }
  for (std::size_t before = 0; before < i; ++before) {
    offset += parameters_[before]->tensor.numel();
  }
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), offset);
  }
  const std::int64_t begin = offset - flat.storage_offset();
  return flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
}

Bucket Bucket::with_buffer(at::Tensor buffer) const {
  if (buffer.numel() != buffer_.numel()) {
    fail(
        "hook",
        "bucket ",
        index_,
        " got a buffer of ",
        buffer.numel(),
        " elements, expected ",
        buffer_.numel());
  }
  return Bucket(index_, is_last_, std::move(buffer), parameters_);
}

}  // namespace gradwire
