// Gradients as 16-bit floats, half of the bytes; as a wrapper, another hook's
// gradients.

#include "gradwire/hook/cast.h"

namespace gradwire {

HookInfo bf16_hook() {
  return cast_hook("bf16", at::kBFloat16);
}

}  // namespace gradwire
