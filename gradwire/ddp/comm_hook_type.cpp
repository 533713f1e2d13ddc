#include "gradwire/ddp/comm_hook_type.h"

#include <algorithm>
#include <array>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

#define GRADWIRE_NAME(name) DDPCommHookType::name, #name

// The only list of PyTorch's names. Quantisation has no memory there, so
// feedback is off.
constexpr std::array kCommHookNames{
    CommHookName{GRADWIRE_NAME(ALLREDUCE), "allreduce"},
    CommHookName{GRADWIRE_NAME(FP16_COMPRESS), "fp16"},
    CommHookName{GRADWIRE_NAME(BF16_COMPRESS), "bf16"},
    CommHookName{
        GRADWIRE_NAME(QUANTIZE_PER_TENSOR),
        "int8:block=tensor,ef=off,scheme=affine"},
    CommHookName{
        GRADWIRE_NAME(QUANTIZE_PER_CHANNEL),
        "int8:block=512,ef=off,scheme=affine"},
    CommHookName{GRADWIRE_NAME(POWER_SGD), "powersgd"},
    CommHookName{GRADWIRE_NAME(POWER_SGD_RANK2), "powersgd:rank=2"},
    CommHookName{GRADWIRE_NAME(BATCHED_POWER_SGD), "batched_powersgd"},
    CommHookName{
        GRADWIRE_NAME(BATCHED_POWER_SGD_RANK2), "batched_powersgd:rank=2"},
    CommHookName{GRADWIRE_NAME(NOOP), "noop"}};

#undef GRADWIRE_NAME

}  // namespace

std::span<const CommHookName> comm_hook_names() {
  return kCommHookNames;
}

std::string hook_spec(DDPCommHookType type) {
  const auto row = std::ranges::find(kCommHookNames, type, &CommHookName::type);
  if (row == kCommHookNames.end()) {
    fail("ddp", "unknown DDPCommHookType ", static_cast<int>(type));
  }
  return row->spec;
}

}  // namespace gradwire
