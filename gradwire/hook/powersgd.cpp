// Gradients as products of thin matrices, parameter by parameter.

#include "gradwire/hook/powersgd_hook.h"

namespace gradwire {

HookInfo powersgd_hook() {
  return powersgd_info(
      "powersgd",
      "matrices of low rank, after a start in full precision",
      LowRank::Matrices::kParameters);
}

}  // namespace gradwire
