#include "gradwire/optim/average_steps.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

#include "gradwire/base/error.h"
#include "gradwire/comm/finite.h"

namespace gradwire {
namespace {

at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient._values() : gradient;
}

}  // namespace

void AverageSteps::begin() {
  partial_.refresh();
  not_finite_ = false;
  scale_ = options_.scale ? options_.scale() : 1;
  if (!std::isfinite(scale_) || scale_ <= 0) {
    fail(
        "optim",
        "the scale of an overlapped optimizer is ",
        scale_,
        ", expected more than 0");
  }
}

at::Tensor AverageSteps::take(const Bucket& bucket, const at::Tensor& result) {
  AveragedBucket average(bucket, result);
  if (options_.all_or_nothing && !all_finite(values_of(average.value()))) {
    not_finite_ = true;
  }
  if (changes_gradients()) {
    average.make_writable();
  }
  AveragedGradients ready;
  for (std::size_t i = 0; i < average.size(); ++i) {
    if (average.is_ready(i) && has(bucket.parameter(i).tensor)) {
      ready.push_back(average[i]);
      change(ready.back().gradient);
    }
  }
  if (!options_.all_or_nothing) {
    partial_.step(ready);
  }
  return average.value();
}

void AverageSteps::take_late(const Tensors& late, const Tensors& ready) {
  const at::NoGradGuard no_grad;
  AveragedGradients all;
  for (const auto& parameter : late) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined()) {
      change(gradient);
      all.push_back({parameter, gradient});
    }
  }
  if (options_.all_or_nothing) {
    for (const auto& parameter : ready) {
      all.push_back({parameter, parameter.grad()});
    }
  }
  partial_.step(all);
}

void AverageSteps::change(at::Tensor& gradient) const {
  if (!changes_gradients()) {
    return;
  }
  if (gradient.is_sparse()) {
    gradient = gradient.coalesce();
  }
  at::Tensor values = values_of(gradient);
  if (scale_ != 1) {
    values.div_(scale_);
  }
  if (options_.clip_value) {
    values.clamp_(-*options_.clip_value, *options_.clip_value);
  }
}

}  // namespace gradwire
