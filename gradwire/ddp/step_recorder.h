#pragma once

// Private to gradwire: what happens in a step, as it happens.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/comm/future.h"
#include "gradwire/comm/group.h"
#include "gradwire/ddp/stats.h"
#include "gradwire/hook/step.h"

namespace gradwire {

// One bucket under way. Shared with the thread that completes it.
struct BucketRecord {
  Step::Time ready;
  std::atomic<Step::Time> reduced{};
  // Shared with the threads that send for it.
  std::shared_ptr<ByteMeter> sent = std::make_shared<ByteMeter>();
  // What the Reducer waits for.
  Future::Raw result = Future::make_raw();
};

// Makes a Step of every backward, and sums of the steps. Not thread safe.
class StepRecorder {
 public:
  // What was sent on `own` before counts too, but not for the first step.
  explicit StepRecorder(Group own);

  // From now on what is sent on `other` counts too, and what was sent on the
  // group given before stays counted. An empty group: only the own one.
  void follow(Group other);

  // `forward_began`: the epoch where it is not known.
  void begin(Step::Time forward_began);
  std::shared_ptr<BucketRecord> add_bucket();
  // The step under way, as far as it is known before its buckets have ended.
  const Step& current() const {
    return step_;
  }

  std::size_t buckets() const {
    return buckets_.size();
  }
  // All buckets so far are reduced, none has failed.
  bool all_reduced() const;
  // Returns when no bucket is under way any more, however it ended. Every
  // bucket ends within the group's timeout.
  void wait_for_all() const;

  // What is known when all buckets have ended. `watched` has the times of
  // gradients where somebody saw them.
  Step end(const Step& watched);
  // A step of this hook has ended for good.
  void count(Step step, const std::string& hook);
  // It was a step of other ranks, and is part of no sum.
  void count_of_others(const Step& step);
  // What was sent since the last step belongs to none.
  void skip();

  std::int64_t steps() const {
    return steps_;
  }
  // Sets steps, bytes and times.
  void report(Stats& stats) const;

 private:
  Bytes sent() const;

  Group own_;
  Group other_;
  Bytes other_before_;
  Bytes sent_on_former_;
  Bytes sent_before_step_;

  Step step_;
  std::vector<std::shared_ptr<BucketRecord>> buckets_;

  // All steps that did not fail, those of others included: equal on all ranks.
  std::int64_t next_number_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t not_finite_ = 0;
  std::int64_t failed_ = 0;
  std::vector<HookBytes> sent_by_hook_;
  Step last_;
  // Of all steps but the first, which warms up.
  StepTimes sum_;
};

}  // namespace gradwire
