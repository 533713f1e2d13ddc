#pragma once

#include "gradwire/hook/choice.h"

namespace gradwire {

class ZeroRedundancyOptimizer;

struct ZeroOverlapOptions {
  // On: the slices of a bucket step as soon as its average is there, and travel
  // while backward goes on. Off: all of them step after the last average.
  bool interleaved = true;
};

// A hook around another one that steps the parameters as part of backward:
// backward() is backward() and zero.step(), to the bit, and zero.step() does
// nothing while the hook is in use.
//
//   gradwire::ZeroRedundancyOptimizer zero(group, net->parameters(), ...);
//   auto ddp = gradwire::DistributedDataParallel(
//       net, group, {.hook = gradwire::zero_overlap("int8", zero)});
//   for (auto& batch : *loader) {
//     zero.zero_grad();
//     torch::nll_loss(ddp->forward(batch.data), batch.target).backward();
//   }
//
// The optimizer has parameters of the DDP only and is of the same ranks; it
// must outlive the hook, and must be left alone while a backward runs. Local
// backwards inside of no_sync() step nothing. Ranks without input take part,
// under a Join. When a bucket fails, parameters of earlier buckets have stepped
// already. Not for sparse gradients nor for backwards of distributed autograd.
HookChoice zero_overlap(
    HookChoice hook,
    ZeroRedundancyOptimizer& zero,
    const ZeroOverlapOptions& options = {});

}  // namespace gradwire
