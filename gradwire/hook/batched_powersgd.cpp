// All of a bucket as one square matrix of low rank: fewer products, and less of
// the structure that makes gradients compressible.

#include "gradwire/hook/powersgd_hook.h"

namespace gradwire {

HookInfo batched_powersgd_hook() {
  return powersgd_info(
      "batched_powersgd",
      "each bucket as one matrix of low rank, after a start in full precision",
      LowRank::Matrices::kBucket);
}

}  // namespace gradwire
