#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gradwire/comm/group.h"

namespace gradwire {

// Finds out who is gone after a collective has failed: ranks that are there say
// so in the store. Every rank that a failure reaches must say it. Does not own
// the group. Nothing here waits, unless no thread can be started. Thread
// safe.
class RollCall {
 public:
  using Tell = std::function<void(const std::string&)>;

  explicit RollCall(const Group& group);
  ~RollCall();

  // This rank is here, with an error of its own.
  void answer();

  // This rank is here and wants to know who else. Calls `tell` on another
  // thread with "rank 2 does not answer", or with "" when all do: ten
  // seconds or half of the group's timeout later at most.
  void ask(Tell tell);

  // The future of a collective, whose CommError names who does not answer. The
  // group does not survive one, so all of them ask once together.
  Future named(const Future& collective);

 private:
  struct State;

  // As ask(), but all that come here get the answer to the first.
  void ask_together(Tell tell);

  // Threads that ask hold it too.
  std::shared_ptr<State> state_;
};

}  // namespace gradwire
