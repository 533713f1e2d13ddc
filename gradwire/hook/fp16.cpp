// Gradients as 16-bit floats, half of the bytes; as a wrapper, another hook's
// gradients.

#include "gradwire/hook/cast.h"

namespace gradwire {

HookInfo fp16_hook() {
  return cast_hook("fp16", at::kHalf);
}

}  // namespace gradwire
