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

// plain_bytes for one byte that the last step sent; 0 where it sent none.
double ratio(const Stats& stats);
// Numbers in gradients for one that is sent; 1 where parameters are not
// reported.
double compression_ratio(const Stats& stats);
// Length of all residuals of this rank together; NaN when none was measured.
double residual_norm(const Stats& stats);

std::ostream& operator<<(std::ostream& out, const Stats& stats);

// visit_fields(value, visit) calls visit(name, field) for every field of what
// statistics consist of, in a fixed order. Python's dictionaries and the
// reports of the command are made from it, so a field has one name everywhere.
// A field is a number (NaN: not known), a text, a value with fields, or a
// vector.
template <class Visit>
void visit_fields(const Bytes& bytes, const Visit& visit) {
  visit("payload", bytes.payload);
  visit("metadata", bytes.metadata);
}

template <class Visit>
void visit_fields(const HookBytes& bytes, const Visit& visit) {
  visit("hook", bytes.hook);
  visit("steps", bytes.steps);
  visit("sent", bytes.sent);
}

template <class Visit>
void visit_fields(const ParameterReport& report, const Visit& visit) {
  visit("name", report.name);
  visit("elems", report.elems);
  visit("sent_elems", report.sent_elems);
  visit("rank", report.rank);
  visit("residual_norm", report.residual_norm);
}

template <class Visit>
void visit_fields(const BucketReport& report, const Visit& visit) {
  visit("ready_ms", report.ready_ms);
  visit("reduced_ms", report.reduced_ms);
  visit("sent", report.sent);
}

template <class Visit>
void visit_fields(const StepTimes& times, const Visit& visit) {
  visit("forward_ms", times.forward_ms);
  visit("backward_ms", times.backward_ms);
  visit("communication_ms", times.communication_ms);
  visit("exposed_ms", times.exposed_ms);
}

template <class Visit>
void visit_fields(const Step& step, const Visit& visit) {
  visit("number", step.number);
  visit("outcome", std::string(to_string(step.outcome)));
  visit("buckets", bucket_reports(step));
  visit("sent", step.sent);
  visit_fields(times_of(step), visit);
}

template <class Visit>
void visit_fields(const Stats& stats, const Visit& visit) {
  visit("hook", stats.hook);
  visit("rank", stats.rank);
  visit("world", stats.world);
  visit("parameters", stats.parameters);
  visit("bucket_bytes", stats.bucket_bytes);
  visit("rebuilt", stats.rebuilt);
  visit("steps", stats.steps);
  visit("not_finite_steps", stats.not_finite_steps);
  visit("failed_steps", stats.failed_steps);
  visit("sent", stats.sent);
  visit("plain_bytes", stats.plain_bytes);
  visit("ratio", ratio(stats));
  visit("sent_by_hook", stats.sent_by_hook);
  visit("compression_ratio", compression_ratio(stats));
  visit("residual_norm", residual_norm(stats));
  visit("by_parameter", stats.by_parameter);
  visit("last", stats.last);
  visit("mean", stats.mean);
}

// What visit_fields takes.
template <class T>
concept HasFields = requires(const T& value) {
  visit_fields(value, [](const char*, const auto&) {});
};

}  // namespace gradwire
