#pragma once

// Private to gradwire: how a step of a hook with memory ended.

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/comm/future.h"

namespace gradwire {

// The buckets of the step under way or just ended. Not thread safe, but for the
// flag, which any thread may set.
class StepResults {
 public:
  using Flag = std::shared_ptr<std::atomic<bool>>;

  void begin() {
    not_finite_ = std::make_shared<std::atomic<bool>>(false);
  }
  // Set when an average is not finite: then no rank will take the step.
  const Flag& not_finite() const {
    return not_finite_;
  }
  void add(const Future& result, bool is_last) {
    results_.push_back(result);
    complete_ = is_last;
  }

  // Waits for all of them. Whether the step counts: complete, without error,
  // finite. Nothing when there was none since the last call.
  std::optional<bool> end();

 private:
  std::vector<Future> results_;
  // With the last bucket among them: a backward that was broken off may have
  // left buckets under way.
  bool complete_ = false;
  Flag not_finite_;
};

}  // namespace gradwire
