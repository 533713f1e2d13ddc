#pragma once

#include <torch/torch.h>

#include <vector>

#include "gradwire/comm/group.h"

namespace gradwire::test {

// Every rank's tensor, on every rank.
inline std::vector<at::Tensor> gather(
    const Group& group, const at::Tensor& tensor) {
  const auto flat = tensor.detach().contiguous().view(-1).clone();
  auto all = torch::empty({group.size() * flat.numel()}, flat.options());
  group.all_gather(all, flat).wait();
  std::vector<at::Tensor> result;
  for (const auto& part : all.view({group.size(), -1}).unbind(0)) {
    result.push_back(part.view(tensor.sizes()));
  }
  return result;
}

// The exact mean over ranks, summed in double and rounded once.
inline at::Tensor exact_mean(const Group& group, const at::Tensor& tensor) {
  auto sum = torch::zeros(tensor.sizes(), torch::kDouble);
  for (const auto& part : gather(group, tensor)) {
    sum += part.to(torch::kDouble);
  }
  return (sum / group.size()).to(tensor.scalar_type());
}

// Bit for bit, NaN included.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto x = a.detach().contiguous();
  const auto y = b.detach().contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.nbytes() == 0 ||
          std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0);
}

inline bool same_on_all_ranks(const Group& group, const at::Tensor& tensor) {
  for (const auto& part : gather(group, tensor)) {
    if (!same_bits(part, tensor.detach().contiguous())) {
      return false;
    }
  }
  return true;
}

// Values that depend on nothing but the seed, whatever thread asks.
inline at::Tensor random_tensor(at::IntArrayRef sizes, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::randn(sizes, generator);
}

// Fills the parameters with values that depend on the seed alone: rank threads
// share Torch's global generator, so ordinary initialisation is not repeatable.
inline void fill_parameters(torch::nn::Module& module, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(random_tensor(parameter.sizes(), seed++).mul_(0.1));
  }
}

}  // namespace gradwire::test
