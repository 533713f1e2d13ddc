#pragma once

#include "gradwire/comm/group.h"
#include "gradwire/ddp/stats.h"
#include "gradwire/ddp/watch.h"

namespace gradwire {

// Where the time and the bytes of a DDP's steps go. Not thread safe.
class StepMeter {
 public:
  // What was sent on `own` before counts too, but not for the first step.
  explicit StepMeter(Group own);

  // From now on what is sent on `other` counts too, and what was sent on the
  // group given before stays counted. An empty group: only the own one.
  void follow(Group other);

  void begin_forward();
  void end_forward();
  void end_step(
      const GradientWatch::Backward& backward, const std::string& hook);

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

  GradientWatch::Clock::time_point forward_started_;
  double forward_ms_ = 0;
  std::int64_t steps_ = 0;
  Bytes sent_before_step_;
  Bytes sent_last_step_;
  std::vector<HookBytes> sent_by_hook_;
  StepTimes last_;
  StepTimes sum_;
};

}  // namespace gradwire
