#include "gradwire/hook/plain_job.h"

#include "gradwire/comm/finite.h"

namespace gradwire {

PlainJob::PlainJob(
    at::Tensor values, int world, std::shared_ptr<std::atomic<bool>> not_finite)
    : values_(std::move(values)),
      world_(world),
      not_finite_(std::move(not_finite)),
      result_(Future::make_raw()) {}

void PlainJob::wait() {
  sum_.wait();
}

void PlainJob::run(std::size_t phase, const Lane::Groups& groups) {
  if (phase == 0) {
    values_.mul_(1.0 / world_);
    sum_ = groups[0].all_reduce(values_);
  } else if (phase == 1) {
    const at::Tensor sum = sum_.wait();
    const at::Tensor dense = sum.is_sparse() ? sum._values() : sum;
    if (!all_finite(dense)) {
      *not_finite_ = true;
    }
    result_->markCompleted(c10::IValue(sum));
  }
}

void PlainJob::fail(const std::exception_ptr& error) noexcept {
  if (!result_->completed()) {
    result_->setError(error);
  }
}

}  // namespace gradwire
