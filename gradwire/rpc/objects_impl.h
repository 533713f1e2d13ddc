#pragma once

// Private to rpc: the objects of this process, and the holds it answers for.

#include <map>
#include <vector>

#include "gradwire/rpc/object_table.h"

namespace gradwire::rpc {

ObjectTable& object_table();

// Holds on other workers' objects, by owner.
std::map<int, std::vector<HoldId>> holds_by_owner();

// The functions through which owners and holders talk.
void register_own_functions();

// After shutdown: handles that are still around do nothing any more.
void forget_objects();

}  // namespace gradwire::rpc
