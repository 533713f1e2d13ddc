#pragma once

#include <optional>
#include <span>
#include <string>

#include "gradwire/ddp/ddp.h"

namespace gradwire {

// The hooks under the names PyTorch's ddp_comm_hooks gives them.
enum class DDPCommHookType {
  ALLREDUCE,
  FP16_COMPRESS,
  BF16_COMPRESS,
  QUANTIZE_PER_TENSOR,
  QUANTIZE_PER_CHANNEL,
  POWER_SGD,
  POWER_SGD_RANK2,
  BATCHED_POWER_SGD,
  BATCHED_POWER_SGD_RANK2,
  NOOP
};

// One of PyTorch's names and the spec of the hook that does the same.
struct CommHookName {
  DDPCommHookType type;
  const char* name;
  const char* spec;
};

// All names, in PyTorch's order.
std::span<const CommHookName> comm_hook_names();

// "allreduce" for ALLREDUCE, and so on.
std::string hook_spec(DDPCommHookType type);

// As in PyTorch: once per DDP, before the first backward. `group`: the ranks
// the hook communicates with, by default all of the DDP's. Collective. Throws
// Error when a hook is registered already; ddp->set_hook replaces hooks.
template <class M>
void register_ddp_comm_hook(
    DDPCommHookType type,
    const DistributedDataParallel<M>& ddp,
    const std::optional<Group>& group = {}) {
  ddp->engine().register_hook_once(hook_spec(type), group);
}

}  // namespace gradwire
