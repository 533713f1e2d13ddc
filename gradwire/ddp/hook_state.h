#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/hook/hook.h"

namespace gradwire {

struct LoadHookState {
  // Refuse the state of another world instead of redistributing it.
  bool strict = false;
};

// Where a hook's state is kept and what it belongs to.
struct HookStatePlace {
  std::string folder;
  std::string hook;
  // Names and elements.
  std::vector<std::pair<std::string, std::int64_t>> parameters;
};

// Writes this rank's file into the folder, which is made if need be.
// Collective: when a rank cannot write, every rank throws Error. A crash leaves
// every file whole, old or new, and load_hook_state notices when they do not
// belong together.
void save_hook_state(
    const Group& group, const HookStatePlace& place, const HookState& state);

// What save_hook_state wrote for this rank. In a world of another size
// residuals are dealt out so that their sum over ranks is what it was.
// Collective: throws Error on every rank, naming file and reason, when a file
// is missing, damaged, of another version, hook, model or save, or of another
// world where options.strict.
HookState load_hook_state(
    const Group& group,
    const HookStatePlace& place,
    const LoadHookState& options);

}  // namespace gradwire
