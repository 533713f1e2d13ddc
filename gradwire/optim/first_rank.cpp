#include "gradwire/optim/first_rank.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace gradwire {
namespace {

// Where an element of any type may begin.
constexpr std::int64_t kAlignment = 16;

std::int64_t aligned_bytes(const at::Tensor& tensor) {
  const auto bytes = tensor.numel() * tensor.element_size();
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

FirstRank::FirstRank(const NamedTensorList& tensors) : tensors_(tensors) {
  std::int64_t all = 0;
  for (const NamedTensor& each : tensors_) {
    all += aligned_bytes(each.tensor);
  }
  bytes_ = at::zeros({all}, at::kByte);
  std::int64_t begin = 0;
  for (const NamedTensor& each : tensors_) {
    const at::Tensor& tensor = each.tensor;
    rooms_.push_back(
        bytes_.narrow(0, begin, tensor.numel() * tensor.element_size())
            .view(tensor.scalar_type())
            .view(tensor.sizes()));
    begin += aligned_bytes(tensor);
  }
}

Future FirstRank::start(const Group& group) {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    rooms_[i].copy_(tensors_[i].tensor);
  }
  return rooms_.empty() ? Future::ready(bytes_) : group.broadcast(bytes_);
}

void FirstRank::take() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].tensor.copy_(rooms_[i]);
  }
}

}  // namespace gradwire
