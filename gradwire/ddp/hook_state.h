#pragma once

#include <cstdint>
#include <functional>
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

// Indices of parameters, bucket by bucket.
using BucketLayout = std::vector<std::vector<std::int64_t>>;

// What is kept of a DDP.
struct SavedHook {
  BucketLayout layout;
  HookState state;
};

// Where a hook's state is kept and what it belongs to.
struct HookStatePlace {
  std::string folder;
  std::string hook;
  // Names and elements.
  std::vector<std::pair<std::string, std::int64_t>> parameters;
};

// Writes what `take` returns into this rank's file in the folder, which is made
// if need be. Collective: when a rank cannot, every rank throws Error. A crash
// or an error leaves every file whole, old or new, and load_hook_state refuses
// files of different saves.
void save_hook_state(
    const Group& group,
    const HookStatePlace& place,
    const std::function<SavedHook()>& take);

// What save_hook_state wrote for this rank. All ranks read rank 0's file too,
// so the folder must be one that they share. `check` may throw first. In a
// world of another size residuals are dealt out so that their sum over ranks is
// what it was. Collective: throws Error on every rank, naming file and reason,
// when a file is missing, damaged, of another version, hook, model or save, or
// of another world where options.strict.
SavedHook load_hook_state(
    const Group& group,
    const HookStatePlace& place,
    const LoadHookState& options,
    const std::function<void()>& check);

}  // namespace gradwire
