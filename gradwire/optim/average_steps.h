#pragma once

// Private to gradwire: what an overlapped optimizer does with averages.

#include <vector>

#include "gradwire/optim/optimizer_overlap.h"
#include "gradwire/optim/partial_step.h"

namespace gradwire {

// Scales, clips and steps, as the options say. During a step it belongs to the
// thread that takes averages, before and after to the one that trains.
class AverageSteps {
 public:
  using Tensors = std::vector<at::Tensor>;

  // The optimizer must live longer.
  AverageSteps(torch::optim::Optimizer& optimizer, OverlapOptions options)
      : partial_(optimizer), options_(std::move(options)) {}

  void begin();
  bool has(const at::Tensor& parameter) const {
    return partial_.has(parameter);
  }

  // Steps what is ready; returns what becomes the gradients. `result`: of a
  // hook, for this bucket.
  at::Tensor take(const Bucket& bucket, const at::Tensor& result);
  // Some average was not finite. Known with all_or_nothing only.
  bool not_finite() const {
    return not_finite_;
  }
  // The rest, from `.grad`. What was ready is scaled and clipped already.
  void take_late(const Tensors& late, const Tensors& ready);

 private:
  bool changes_gradients() const {
    return scale_ != 1 || options_.clip_value;
  }
  void change(at::Tensor& gradient) const;

  PartialStep partial_;
  OverlapOptions options_;
  double scale_ = 1;
  bool not_finite_ = false;
};

}  // namespace gradwire
