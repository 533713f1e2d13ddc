#pragma once

// Private to gradwire: averages of buckets, as optimizers take them.

#include <vector>

#include "gradwire/hook/bucket.h"

namespace gradwire {

// A parameter and the average of its gradient, with the parameter's strides.
struct AveragedGradient {
  at::Tensor parameter;
  at::Tensor gradient;
};

using AveragedGradients = std::vector<AveragedGradient>;

// What became of a bucket: views of the result of a hook, not of what the hook
// was given. Not thread safe.
class AveragedBucket {
 public:
  // `result`: what the Future of a hook for this bucket holds. It may be
  // written into the bucket's buffer. Throws Error for what is no result.
  AveragedBucket(const Bucket& bucket, const at::Tensor& result);

  // What is handed on in place of the result: the gradients are views of it.
  const at::Tensor& value() const {
    return average_.buffer();
  }
  std::size_t size() const {
    return average_.size();
  }
  // The average of parameter i, sparse in a sparse bucket.
  AveragedGradient operator[](std::size_t i) const {
    return {average_.parameter(i).tensor, average_.gradient(i)};
  }
  // Whether parameter i can step as soon as the average is there. Others step
  // in the hook's end_step(), from the `.grad` that they have by then: whether
  // a parameter that this rank has not used gets a gradient is not known
  // before, and a sparse average is not what `.grad` will be.
  bool is_ready(std::size_t i) const {
    return !average_.is_sparse() && average_.has_gradient(i);
  }

  // Before gradients are changed in place: what a hook returns may be the
  // hook's own.
  void make_writable();

 private:
  at::Tensor buffer_;
  Bucket average_;
};

}  // namespace gradwire
