#include "gradwire/optim/zero_parameter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

// Strides of dimensions with one element mean nothing.
bool same_layout(
    const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (tensor.layout() != at::kStrided || tensor.sizes() != sizes) {
    return false;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 &&
        tensor.stride(static_cast<std::int64_t>(i)) != strides[i]) {
      return false;
    }
  }
  return true;
}

// Refers to memory of another tensor, with nothing of its history.
void refer_to(
    at::Tensor& tensor,
    const at::Tensor& to,
    std::int64_t first,
    at::IntArrayRef sizes,
    at::IntArrayRef strides) {
  tensor.set_(to.storage(), to.storage_offset() + first, sizes, strides);
}

}  // namespace

at::Tensor flat_memory(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

ZeroParameter::ZeroParameter(
    std::string name, at::Tensor tensor, std::size_t group)
    : name_(std::move(name)),
      tensor_(std::move(tensor)),
      group_(group),
      target_(std::make_shared<SpreadTarget>()) {
  if (!tensor_.defined() || tensor_.layout() != at::kStrided ||
      !tensor_.is_non_overlapping_and_dense()) {
    fail(
        "optim",
        "parameter '",
        name_,
        "' is undefined, sparse or has holes, expected one that is dense in "
        "memory");
  }
  if (!tensor_.device().is_cpu()) {
    fail(
        "optim",
        "parameter '",
        name_,
        "' is on ",
        tensor_.device().str(),
        ", expected cpu");
  }
  sizes_ = tensor_.sizes().vec();
  strides_ = tensor_.strides().vec();
  target_->stream = fingerprint(name_);
  target_->values = at::empty({0}, tensor_.options().requires_grad(false));
  attach();
}

void ZeroParameter::attach() {
  const at::NoGradGuard no_grad;
  const at::Tensor from = tensor_.detach();
  refer_to(target_->values, from, 0, {tensor_.numel()}, {1});
  data_ = tensor_.const_data_ptr();
  version_ = tensor_._version();
  if (!run_) {
    return;
  }
  if (full_) {
    reset_full();
  } else if (whole_) {
    refer_to(slice_, from, 0, sizes_, strides_);
  } else {
    refer_to(slice_, from, run_->first, {run_->elems}, {1});
  }
}

void ZeroParameter::own(const plan::Run& run, bool whole, bool full) {
  run_ = run;
  whole_ = whole;
  full_ = full;
  const auto options = tensor_.options().requires_grad(false);
  if (!full) {
    slice_ = at::empty({0}, options);
  } else {
    slice_ = whole ? at::empty_strided(sizes_, strides_, options)
                   : at::empty({run.elems}, options);
    target_->wanted = flat_memory(slice_);
    target_->first = run.first;
  }
  attach();
}

void ZeroParameter::follow() {
  if (!same_layout(tensor_, sizes_, strides_) ||
      tensor_.scalar_type() != target_->values.scalar_type()) {
    fail(
        "optim",
        "parameter '",
        name_,
        "' has become one of ",
        tensor_.scalar_type(),
        " ",
        tensor_.sizes(),
        ", expected ",
        target_->values.scalar_type(),
        " ",
        at::IntArrayRef(sizes_),
        " with the strides that it had");
  }
  if (tensor_.const_data_ptr() != data_ ||
      (full_ && tensor_._version() != version_)) {
    attach();
  }
}

void ZeroParameter::reset_full() {
  target_->wanted.copy_(target_->values.narrow(0, run_->first, run_->elems));
}

void ZeroParameter::note_written() {
  tensor_.unsafeGetTensorImpl()->bump_version();
  version_ = tensor_._version();
}

void ZeroParameter::check_gradient() const {
  const at::Tensor& gradient = tensor_.grad();
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    fail(
        "optim",
        "the gradient of parameter '",
        name_,
        "' is sparse, expected a dense one");
  }
}

void ZeroParameter::set_gradient(const at::Tensor& gradient) {
  if (!run_) {
    return;
  }
  if (!gradient.defined()) {
    slice_.mutable_grad() = at::Tensor();
    return;
  }
  const at::Tensor own = gradient.detach();
  at::Tensor like = own;
  if (!same_layout(own, sizes_, strides_)) {
    like = at::empty_strided(sizes_, strides_, own.options()).copy_(own);
  }
  slice_.mutable_grad() =
      whole_ ? like : flat_memory(like).narrow(0, run_->first, run_->elems);
}

at::Tensor ZeroParameter::laid_out(
    const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (tensor.sizes() != sizes) {
    return tensor;
  }
  if (same_layout(tensor, sizes, strides)) {
    return flat_memory(tensor);
  }
  return flat_memory(
      at::empty_strided(sizes, strides, tensor.options()).copy_(tensor));
}

ParameterState ZeroParameter::kept_of_slice(const ParameterState& state) const {
  ParameterState result{{}, state.numbers};
  for (const auto& [name, tensor] : state.tensors) {
    result.tensors[name] = laid_out(tensor, slice_.sizes(), slice_.strides());
  }
  return result;
}

ParameterState ZeroParameter::kept_of_whole(const ParameterState& state) const {
  ParameterState result{{}, state.numbers};
  for (const auto& [name, tensor] : state.tensors) {
    result.tensors[name] = laid_out(tensor, sizes_, strides_);
  }
  return result;
}

ParameterState ZeroParameter::for_slice(const ParameterState& kept) const {
  return shaped(kept, slice_.sizes(), slice_.strides());
}

ParameterState ZeroParameter::for_whole(const ParameterState& kept) const {
  return shaped(kept, sizes_, strides_);
}

ParameterState ZeroParameter::shaped(
    const ParameterState& kept,
    at::IntArrayRef sizes,
    at::IntArrayRef strides) {
  ParameterState result{{}, kept.numbers};
  for (const auto& [name, tensor] : kept.tensors) {
    at::Tensor& given = result.tensors[name];
    if (tensor.dim() == 1 && tensor.numel() == c10::multiply_integers(sizes)) {
      given = at::empty_strided(sizes, strides, tensor.options());
      flat_memory(given).copy_(tensor);
    } else {
      given = tensor.clone();
    }
  }
  return result;
}

}  // namespace gradwire
