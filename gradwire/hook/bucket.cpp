#include "gradwire/hook/bucket.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/view_as_complex.h>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

// Whether there are complex numbers made of these.
bool has_complex_type(const at::Tensor& reals) {
  const auto type = reals.scalar_type();
  return type == at::kFloat || type == at::kDouble || type == at::kHalf;
}

}  // namespace

Bucket::Bucket(
    std::size_t index,
    bool is_last,
    at::Tensor buffer,
    Parameters parameters,
    std::vector<bool> has_gradient)
    : index_(index),
      is_last_(is_last),
      buffer_(std::move(buffer)),
      parameters_(std::move(parameters)),
      has_gradient_(std::move(has_gradient)) {}

bool Bucket::is_sparse() const {
  return buffer_.is_sparse();
}

std::int64_t Bucket::elems(std::size_t i) const {
  const Parameter& parameter = *parameters_.at(i);
  // The Reducer flattens complex gradients into pairs of real numbers.
  return buffer_.is_complex() ? parameter.tensor.numel() : parameter.reals();
}

at::Tensor Bucket::flat_gradient(std::size_t i) const {
  std::int64_t before = 0;
  for (std::size_t k = 0; k < i; ++k) {
    before += elems(k);
  }
  return buffer_.narrow(0, before, elems(i));
}

at::Tensor Bucket::gradient(std::size_t i) const {
  const at::Tensor& parameter = parameters_.at(i)->tensor;
  if (is_sparse()) {
    return buffer_;
  }
  const at::Tensor own = flat_gradient(i);
  const bool dense = parameter.is_non_overlapping_and_dense();
  auto sizes = parameter.sizes().vec();
  auto strides = parameter.strides().vec();
  if (elems(i) == parameter.numel()) {
    return dense ? own.as_strided(sizes, strides) : own.view(sizes);
  }
  // Pairs of real numbers, as a last dimension.
  sizes.push_back(2);
  for (std::int64_t& stride : strides) {
    stride *= 2;
  }
  strides.push_back(1);
  const at::Tensor pairs =
      dense ? own.as_strided(sizes, strides) : own.view(sizes);
  return has_complex_type(buffer_) ? at::view_as_complex(pairs) : pairs;
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
  return Bucket(
      index_, is_last_, std::move(buffer), parameters_, has_gradient_);
}

}  // namespace gradwire
