#include "gradwire/comm/finite.h"

#include <ATen/ops/aminmax.h>

#include <cmath>

namespace gradwire {

bool all_finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return true;
  }
  const auto [least, most] = at::aminmax(tensor);
  return std::isfinite(least.item<double>()) &&
         std::isfinite(most.item<double>());
}

}  // namespace gradwire
