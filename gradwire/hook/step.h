#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "gradwire/base/bytes.h"

namespace gradwire {

// One backward whose gradients are averaged, as hooks, statistics and traces
// see it. A value: whoever keeps one keeps what happened.
struct Step {
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  enum class Outcome {
    kOpen,       // under way
    kApplied,    // every gradient is averaged
    kNotFinite,  // averaged, but some average is not finite
    kFailed,     // some bucket is not averaged
  };

  struct Bucket {
    // When it was handed to the hook, and when its average was there.
    Time ready = {};
    Time reduced = {};
    Bytes sent = {};
  };

  // Counts the steps of one DDP from 0, without those that failed: the same on
  // all ranks.
  std::int64_t number = 0;
  Outcome outcome = Outcome::kOpen;
  // In the order of reduction.
  std::vector<Bucket> buckets = {};
  // All that was sent for this step, broadcasts of buffers included.
  Bytes sent = {};

  // What is not known is the clock's epoch: a DDP that was made from Python
  // tells about its buckets alone.
  Time forward_began = {};
  Time forward_ended = {};
  Time backward_began = {};
  // The last local gradient was there.
  Time last_gradient = {};
  // The last average was there.
  Time ended = {};
};

// Where the time of a step went, in milliseconds; NaN: not known.
struct StepTimes {
  // Inside of forward(), buffers and bookkeeping included.
  double forward_ms = 0;
  // From the first gradient of the outputs to the last averaged gradient.
  double backward_ms = 0;
  // From the first bucket to the last average.
  double communication_ms = 0;
  // From the last local gradient, or the last bucket where nobody saw the
  // gradients, to the last average: what the step would be shorter by if
  // communication were free.
  double exposed_ms = 0;
};

StepTimes times_of(const Step& step);

// One bucket of a step. Times are in milliseconds since the first bucket was
// ready; NaN: not known.
struct BucketReport {
  double ready_ms = 0;
  double reduced_ms = 0;
  Bytes sent = {};
};

std::vector<BucketReport> bucket_reports(const Step& step);
// "applied", "not finite", "failed", "open".
const char* to_string(Step::Outcome outcome);

}  // namespace gradwire
