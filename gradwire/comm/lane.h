#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/comm/group.h"

namespace gradwire {

// The one ordered path on which the collectives of a hook are submitted.
//
// Work passes through phases, one after another; every phase has a thread and
// connections of its own and takes its jobs in the order of submission. So
// phases of successive jobs overlap, and yet all ranks submit the same
// collectives in the same order on the same connections, whatever else happens
// on the group or at what time buckets become ready.
//
// When a job fails, so do all that follow, at once. The lane then drops its
// connections, so that peers which wait for it fail at once, too, and is of no
// use any more. The destructor ends what is under way like that; it takes at
// most one timeout of the group.
class Lane {
 public:
  // The connections of one phase.
  using Groups = std::vector<Group>;

  class Job {
   public:
    virtual ~Job() = default;
    // Waits for the collectives that the phase before has submitted, in the
    // thread of the next one. What it throws fails the lane.
    virtual void wait() = 0;
    // One phase, in the thread of that phase: submits on the groups of it, and
    // must not keep one. What it throws fails the lane.
    virtual void run(std::size_t phase, const Groups& groups) = 0;
    // Called once, instead of the phases that remain.
    virtual void fail(const std::exception_ptr& error) noexcept = 0;
  };
  struct Phase {
    std::string name;
    // How many groups it submits on; 0: it only computes.
    int groups = 1;
  };

  // Connects. Collective. What is sent counts as sent on `group`.
  Lane(const Group& group, const std::string& label, std::vector<Phase> phases);
  ~Lane();
  Lane(const Lane&) = delete;

  // Returns at once. All ranks submit the same jobs in the same order. A lane
  // that has failed fails the job before it returns.
  void submit(std::shared_ptr<Job> job);

  // All jobs fail with this, here and, as connections are dropped, elsewhere.
  // Throws it, as a CommError: others may have sent what this rank will not.
  [[noreturn]] void fail(const std::exception_ptr& error);

  bool is_own_thread() const;

 private:
  struct State;

  std::unique_ptr<State> state_;
};

}  // namespace gradwire
