// Gradients as 8-bit integers, a quarter of the bytes.

#include "gradwire/hook/compressed.h"

namespace gradwire {

HookInfo int8_hook() {
  return compressed_hook("int8", /*feedback=*/true);
}

}  // namespace gradwire
