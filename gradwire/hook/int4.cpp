// Gradients as 4-bit integers, an eighth of the bytes.

#include "gradwire/hook/compressed.h"

namespace gradwire {

HookInfo int4_hook() {
  return compressed_hook("int4", /*feedback=*/true);
}

}  // namespace gradwire
