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

// How long a hold lasts after its last renewal. The keeper looks for expired
// holds every sixth of a lease, so an object whose holder dies is freed within
// one lease.
constexpr std::chrono::milliseconds hold_time(std::chrono::milliseconds lease) {
  return lease - lease / 6;
}

// The functions through which owners and holders talk.
void register_own_functions();

// For the end of a worker: handles that still exist have no effect afterwards.
void forget_objects();

}  // namespace gradwire::rpc
