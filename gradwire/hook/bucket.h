#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gradwire {

// A trainable parameter with the name the wrapped module gives it.
struct Parameter {
  std::string name;
  at::Tensor tensor;

  // Numbers in its gradient as hooks see it: two for a complex element.
  std::int64_t reals() const {
    return tensor.numel() * (tensor.is_complex() ? 2 : 1);
  }
};

using Parameters = std::vector<std::shared_ptr<const Parameter>>;

// A flat gradient plus one view per parameter. Valid after the hook's call too:
// it owns what it refers to. Not thread safe.
class Bucket {
 public:
  // `has_gradient`: by parameter; empty: all have one.
  Bucket(
      std::size_t index,
      bool is_last,
      at::Tensor buffer,
      Parameters parameters,
      std::vector<bool> has_gradient = {});

  // Buckets of one backward are numbered 0, 1, 2... in the order in which all
  // ranks reduce them, and exactly one of them is the last.
  std::size_t index() const {
    return index_;
  }
  bool is_last() const {
    return is_last_;
  }

  // All gradients of this bucket, one after another: one-dimensional, or the
  // sparse gradient itself where is_sparse(). A hook may work in place.
  const at::Tensor& buffer() const {
    return buffer_;
  }
  bool is_sparse() const;

  std::size_t size() const {
    return parameters_.size();
  }
  const Parameter& parameter(std::size_t i) const {
    return *parameters_.at(i);
  }
  // Whether the average becomes the gradient of parameter i for certain. Not
  // where this rank has none for it: the average is its gradient only if
  // another rank has one, which is known when the step ends. Nor where whoever
  // fills the buckets cannot tell.
  bool has_gradient(std::size_t i) const {
    return has_gradient_.empty() || has_gradient_.at(i);
  }
  // How many elements of the buffer belong to parameter i.
  std::int64_t elems(std::size_t i) const;
  // These elements, as they lie in the buffer.
  at::Tensor flat_gradient(std::size_t i) const;
  // The gradient of parameter i as a view of the buffer, with the parameter's
  // own shape and strides: element for element what `.grad` will be. Of a
  // complex parameter in a type that has no complex numbers (bfloat16): pairs,
  // in a last dimension.
  at::Tensor gradient(std::size_t i) const;

  // The same parameters over another buffer of as many elements, for hooks
  // that hand a transformed bucket on to an inner hook.
  Bucket with_buffer(at::Tensor buffer) const;

 private:
  std::size_t index_;
  bool is_last_;
  at::Tensor buffer_;
  Parameters parameters_;
  std::vector<bool> has_gradient_;
};

}  // namespace gradwire
