#include "gradwire/hook/plain_job.h"

#include "gradwire/comm/finite.h"

namespace gradwire {

PlainJob::PlainJob(
    at::Tensor values, int world, std::shared_ptr<std::atomic<bool>> not_finite)
    : values_(std::move(values)),
      world_(world),
      not_finite_(std::move(not_finite)) {}

std::span<const Lane::Job::Step> PlainJob::steps() const {
  static const Step kSteps[] = {
      step("all-reduce", &PlainJob::send), step("check", &PlainJob::check)};
  return kSteps;
}

void PlainJob::send(const Lane::Groups& groups) {
  values_.mul_(1.0 / world_);
  sum_ = groups[0].all_reduce(values_);
  await(sum_);
}

void PlainJob::check(const Lane::Groups&) {
  const at::Tensor sum = sum_.wait();
  if (!all_finite(sum.is_sparse() ? sum._values() : sum)) {
    *not_finite_ = true;
  }
  result().set_value(sum);
}

}  // namespace gradwire
