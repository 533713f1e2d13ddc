#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
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
// When a job fails, so do all that follow. The lane then drops its connections,
// so that peers which wait for it fail at once, too, and is of no use any more.
// The destructor ends what is under way like that; it takes at most one timeout
// of the group.
//
// In a forked child, which has no copy of the threads, submit() throws and the
// destructor leaks.
class Lane {
 public:
  // The connections of one phase.
  using Groups = std::vector<Group>;

  class Result;
  class Job;
  struct Phase {
    // What its thread is called.
    std::string name;
    // How many groups it submits on; 0: it only computes.
    int groups = 1;
  };

  // Connects. Collective. What is sent counts as sent on `group`. Throws Error
  // on every rank where the labels differ, and on this rank alone when a thread
  // cannot be started: a label names all that ranks must have alike.
  Lane(const Group& group, const std::string& label, std::vector<Phase> phases);
  ~Lane();
  Lane(const Lane&) = delete;

  // A future of `value` when the job has ended. Returns at once. All ranks
  // submit the same jobs in the same order. A lane that has failed fails the
  // job before it returns.
  Future submit(std::shared_ptr<Job> job, at::Tensor value);
  // The same for one of several jobs with one result, which has begun.
  void submit(std::shared_ptr<Job> job, std::shared_ptr<Result> result);

  // All jobs fail with this, here and, as connections are dropped, elsewhere.
  // Throws it, as a CommError: others may have sent what this rank will not.
  [[noreturn]] void fail(const std::exception_ptr& error);

  bool is_own_thread() const;

 private:
  struct State;

  std::unique_ptr<State> state_;
};

// What becomes of some jobs: one future, complete when the last of them has
// ended, well or not. Then it may begin anew. Thread safe but for begin().
class Lane::Result {
 public:
  virtual ~Result() = default;

  // A future of `value` after so many jobs.
  Future begin(at::Tensor value, std::size_t jobs = 1);
  // Begun and not complete.
  bool busy() const {
    return busy_;
  }
  // In place of the value that it began with.
  void set_value(at::Tensor value);
  // The future will hold this error though the lane goes on: ranks have agreed
  // on leaving the rest out.
  void refuse(const std::exception_ptr& error);
  bool refused() const {
    return refused_;
  }

 protected:
  // Called before it completes: drops what belongs to this use.
  virtual void release() noexcept {}

 private:
  friend class Lane;

  void job_ended(const std::exception_ptr& error);

  std::atomic<bool> busy_{false};
  std::atomic<bool> refused_{false};
  std::atomic<std::size_t> jobs_{0};
  // Of what follows.
  std::mutex mutex_;
  Future::Raw future_;
  at::Tensor value_;
  std::exception_ptr error_;
};

// Something to be done in steps, one a phase: a job ends with its last step, or
// when the lane fails. It is told of neither; its result is.
class Lane::Job {
 public:
  struct Step {
    // What errors call the phase.
    const char* name;
    // Runs in the thread of the phase and submits on the groups of it, which it
    // must not keep. What it throws fails the lane.
    void (Job::*run)(const Groups& groups);
  };

  virtual ~Job() = default;
  // At most as many as the lane has phases. The last one leaves nothing to
  // wait for.
  virtual std::span<const Step> steps() const = 0;

 protected:
  // For steps(): a step that is a member of the job's own class.
  template <class T>
  static Step step(const char* name, void (T::*run)(const Groups& groups)) {
    return {name, static_cast<void (Job::*)(const Groups&)>(run)};
  }

  // The lane waits for this collective before the next step, and before the
  // job ends in any way: it may write into the job's values.
  void await(Future collective) {
    pending_.push_back(std::move(collective));
  }
  // Between begin and end.
  Result& result() const {
    return *result_;
  }

 private:
  friend class Lane;

  bool has_pending() const;
  // Throws the first error, after all have ended.
  void wait_for_pending();
  void end(const std::exception_ptr& error);

  std::shared_ptr<Result> result_;
  std::vector<Future> pending_;
};

}  // namespace gradwire
