#include "gradwire/ddp/comm_hook_type.h"

#include "gradwire/base/error.h"

namespace gradwire {

std::string hook_spec(DDPCommHookType type) {
  switch (type) {
    case DDPCommHookType::ALLREDUCE:
      return "allreduce";
    case DDPCommHookType::FP16_COMPRESS:
      return "fp16";
    case DDPCommHookType::BF16_COMPRESS:
      return "bf16";
    case DDPCommHookType::QUANTIZE_PER_TENSOR:
      return "int8:block=tensor,ef=off,scheme=affine";
    case DDPCommHookType::QUANTIZE_PER_CHANNEL:
      return "int8:block=512,ef=off,scheme=affine";
    case DDPCommHookType::POWER_SGD:
      return "powersgd";
    case DDPCommHookType::POWER_SGD_RANK2:
      return "powersgd:rank=2";
    case DDPCommHookType::BATCHED_POWER_SGD:
      return "batched_powersgd";
    case DDPCommHookType::BATCHED_POWER_SGD_RANK2:
      return "batched_powersgd:rank=2";
    case DDPCommHookType::NOOP:
      return "noop";
  }
  fail("ddp", "unknown DDPCommHookType ", static_cast<int>(type));
}

}  // namespace gradwire
