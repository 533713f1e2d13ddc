// Gradients as 8-bit floats, a quarter of the bytes: finer than int8 for small
// elements of a block, coarser for large ones.

#include "gradwire/hook/compressed.h"

namespace gradwire {

HookInfo fp8_hook() {
  return compressed_hook("fp8", /*feedback=*/true);
}

}  // namespace gradwire
