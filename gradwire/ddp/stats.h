#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "gradwire/base/bytes.h"
#include "gradwire/hook/report.h"
#include "gradwire/hook/step.h"

namespace gradwire {

// What one hook has sent while it was in use.
struct HookBytes {
  std::string hook;
  std::int64_t steps = 0;
  Bytes sent = {};
};

// What a DDP has done so far on this rank. A step is one backward in which
// gradients were averaged.
struct Stats {
  std::string hook;
  int rank = 0;
  int world = 1;
  std::int64_t parameters = 0;
  std::vector<std::int64_t> bucket_bytes;
  // Buckets follow the order in which gradients become ready.
  bool rebuilt = false;
  std::int64_t steps = 0;
  // Of these, steps with an average that was not finite. Failed ones are not
  // among the steps.
  std::int64_t not_finite_steps = 0;
  std::int64_t failed_steps = 0;
  // Handed to the transport since construction, the first broadcast of weights
  // included. What a hook object or lambda sends on a group of its own is not.
  Bytes sent = {};
  // What a step would send without a hook.
  std::int64_t plain_bytes = 0;
  // In the order of first use.
  std::vector<HookBytes> sent_by_hook;
  // What became of every parameter in the last step, from hooks that treat them
  // differently (PowerSGD).
  std::vector<ParameterReport> by_parameter;
  Step last;
  // Over all steps but the first, which warms up.
  StepTimes mean;
};

// Numbers in gradients for one that is sent; 1 where parameters are not
// reported.
double compression_ratio(const Stats& stats);
// Length of all residuals of this rank together; NaN when none was measured.
double residual_norm(const Stats& stats);

std::ostream& operator<<(std::ostream& out, const Stats& stats);

}  // namespace gradwire
