#pragma once

// Private to rpc: the objects of this process, and the holds it answers for.

#include <chrono>
#include <map>
#include <vector>

#include "gradwire/rpc/object_table.h"

namespace gradwire::rpc {

ObjectTable& object_table();

// Holds on other workers' objects, by owner.
std::map<int, std::vector<HoldId>> holds_by_owner();

// How long a hold lasts from its last renewal on. Those that ran out are looked
// for every sixth of a lease, so the object of a holder that dies ends within
// one.
constexpr std::chrono::milliseconds hold_time(std::chrono::milliseconds lease) {
  return lease - lease / 6;
}

// The functions through which owners and holders talk.
void register_own_functions();

// After shutdown: handles that are still around do nothing any more.
void forget_objects();

}  // namespace gradwire::rpc
