#pragma once

// Private to gradwire.

#include <ATen/core/Tensor.h>

namespace gradwire {

// Whether all elements of a dense tensor are numbers. Takes no memory of the
// tensor's size.
bool all_finite(const at::Tensor& tensor);

}  // namespace gradwire
