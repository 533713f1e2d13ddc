#pragma once

#include <memory>
#include <string>

#include "gradwire/comm/group.h"

namespace gradwire {

// Finds out who is gone after a collective has failed: ranks that are there say
// so in the store. Every rank that a failure reaches must say it. Does not own
// the group. Thread safe, one call at a time.
class RollCall {
 public:
  explicit RollCall(const Group& group);
  ~RollCall();

  // This rank is here, with an error of its own.
  void answer();
  // This rank is here and wants to know who else: " (rank 2 does not answer)",
  // or nothing when all do. Waits for the others, five seconds or half of the
  // group's timeout at most.
  std::string missing();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradwire
