#include "gradwire/hook/step.h"

#include <limits>

namespace gradwire {
namespace {

double milliseconds_between(Step::Time from, Step::Time to) {
  if (from == Step::Time() || to == Step::Time()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

StepTimes times_of(const Step& step) {
  const Step::Time first_bucket =
      step.buckets.empty() ? Step::Time() : step.buckets.front().ready;
  return {
      milliseconds_between(step.forward_began, step.forward_ended),
      milliseconds_between(step.backward_began, step.ended),
      milliseconds_between(first_bucket, step.ended),
      milliseconds_between(step.last_gradient, step.ended)};
}

std::vector<BucketReport> bucket_reports(const Step& step) {
  std::vector<BucketReport> reports;
  for (const Step::Bucket& bucket : step.buckets) {
    const Step::Time start = step.buckets.front().ready;
    reports.push_back(
        {milliseconds_between(start, bucket.ready),
         milliseconds_between(start, bucket.reduced),
         bucket.sent});
  }
  return reports;
}

const char* to_string(Step::Outcome outcome) {
  switch (outcome) {
    case Step::Outcome::kApplied:
      return "applied";
    case Step::Outcome::kNotFinite:
      return "not finite";
    case Step::Outcome::kFailed:
      return "failed";
    case Step::Outcome::kOpen:
      break;
  }
  return "open";
}

}  // namespace gradwire
