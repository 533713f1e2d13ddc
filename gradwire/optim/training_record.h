#pragma once

// Private to gradwire: what averagers and outer optimizers keep, as the state
// of a hook that has parts.

#include <string>

#include "gradwire/hook/hook_state.h"
#include "gradwire/optim/named_tensor.h"

namespace gradwire {

// Copies of tensors, as what a state shares; and back into tensors of the same
// names.
HookState shared_copies_of(const NamedTensorList& tensors);
void copy_into(const NamedTensorList& tensors, const HookState& state);

// Puts what is in `part` into the state, under names that begin with that of
// the part.
void add_part(HookState& state, const std::string& name, const HookState& part);
// Gets it back.
HookState take_part(const HookState& state, const std::string& name);

// Throws Error unless the part has exactly these tensors, of these sizes and
// types, among those that it shares.
void check_part(
    const std::string& part,
    const HookState& state,
    const NamedTensorList& expected);
// Throws Error unless the state has this number, and it is what is expected.
void check_number(
    const HookState& state, const std::string& name, std::int64_t expected);
// Throws Error unless the state has this number, and it is no less. Returns it.
std::int64_t number_in(
    const HookState& state, const std::string& name, std::int64_t least);

// Whose the state is: `what` over these tensors, in files that begin so.
HookOwner owner_of(
    const std::string& what,
    const NamedTensorList& tensors,
    const std::string& file);
// One without buckets of a Reducer.
SavedHook saved_with(const NamedTensorList& tensors, HookState state);

}  // namespace gradwire
