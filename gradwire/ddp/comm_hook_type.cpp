#include "gradwire/ddp/comm_hook_type.h"

#include "gradwire/base/error.h"

namespace gradwire {

std::string hook_spec(DDPCommHookType type) {
  switch (type) {
    case DDPCommHookType::ALLREDUCE:
      return "allreduce";
    case DDPCommHookType::NOOP:
      return "noop";
  }
  fail("ddp", "unknown DDPCommHookType ", static_cast<int>(type));
}

}  // namespace gradwire
