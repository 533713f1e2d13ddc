#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/hook/hook_record.h"

namespace gradwire {

struct Fact;

struct LoadHookState {
  // Refuse the state of another world instead of redistributing it.
  bool strict = false;
};

// What is kept of a DDP.
struct SavedHook {
  BucketLayout layout;
  HookState state;
};

// What ranks compare of a state.
std::vector<Fact> facts_of(const HookState& state);

// Throws Error for a state that the hook cannot go on with.
using AcceptState = std::function<void(const HookState&)>;

// Writes what `take` returns into this rank's file in the folder, which is made
// if need be. Collective: when a rank cannot, every rank throws Error. A crash
// or an error leaves every file whole, old or new, and load_hook_state refuses
// files of different saves.
void save_hook_state(
    const Group& group,
    const std::string& folder,
    const HookOwner& owner,
    const std::function<SavedHook()>& take);

// What save_hook_state wrote for this rank. All ranks read rank 0's file too,
// so the folder must be one that they share. In a world of another size
// residuals are dealt out so that their sum over ranks is what it was.
// Collective: throws Error on every rank, naming file and reason, when a file
// is missing, damaged, of another version, hook, model or save, or of another
// world where options.strict, and when `accept` throws.
SavedHook load_hook_state(
    const Group& group,
    const std::string& folder,
    const HookOwner& owner,
    const LoadHookState& options,
    const AcceptState& accept);

// This rank's part without a file, for those who keep it elsewhere. Collective.
HookRecord take_hook_state(
    const Group& group,
    const HookOwner& owner,
    const std::function<SavedHook()>& take);

// What take_hook_state gave to this rank of a world of the same size.
// Collective: throws Error on every rank when a record is of another hook,
// model, world, rank or save, or cannot be found, and when `accept` throws.
SavedHook give_hook_state(
    const Group& group,
    const HookOwner& owner,
    const std::function<HookRecord()>& find_record,
    const AcceptState& accept);

}  // namespace gradwire
