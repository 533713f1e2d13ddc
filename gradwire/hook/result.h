#pragma once

// Private to gradwire: the result of a hook, as others take it.

#include <ATen/core/Tensor.h>

namespace gradwire {

// What a hook's Future for `buffer` holds, as a tensor that can take the place
// of the buffer: of its type, contiguous and from the start of its storage. It
// is the result itself, the buffer with the result in it, or a copy. Throws
// Error for what is no result.
at::Tensor result_for(const at::Tensor& buffer, at::Tensor result);

}  // namespace gradwire
