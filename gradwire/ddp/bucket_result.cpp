#include "gradwire/ddp/bucket_result.h"

#include <ATen/core/grad_mode.h>

#include "gradwire/base/error.h"
#include "gradwire/hook/result.h"

namespace gradwire {
namespace {

// What a hook threw, as an Error of the hook's.
std::exception_ptr error_of_hook(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return error;
  } catch (const c10::Error& e) {
    return std::make_exception_ptr(
        Error(concat("[gradwire.hook] ", e.what_without_backtrace())));
  } catch (const std::exception& e) {
    return std::make_exception_ptr(Error(concat("[gradwire.hook] ", e.what())));
  } catch (...) {
    return std::make_exception_ptr(
        Error("[gradwire.hook] the hook threw something unknown"));
  }
}

}  // namespace

BucketResult::BucketResult(
    std::shared_ptr<BucketFailures> failures,
    std::shared_ptr<BucketRecord> record,
    std::size_t index,
    at::Tensor buffer)
    : failures_(std::move(failures)),
      record_(std::move(record)),
      index_(index),
      buffer_(std::move(buffer)) {}

void BucketResult::fail_with(const std::exception_ptr& error) const {
  const bool lost = is_comm_error(error);
  if (lost) {
    failures_->lost_group = true;
  }
  std::int64_t none = BucketFailures::kNone;
  const bool first = failures_->first.compare_exchange_strong(
      none, static_cast<std::int64_t>(index_));
  if (!lost) {
    if (first) {
      failures_->roll_call->answer();
    }
    set_error(error, "");
    return;
  }
  set_error_later(error);
}

// When it is known who is missing. Not on this thread: its connections must
// be dropped now for others to notice.
void BucketResult::set_error_later(const std::exception_ptr& error) const {
  std::unique_lock lock(failures_->mutex);
  if (failures_->missing) {
    const std::string missing = *failures_->missing;
    lock.unlock();
    set_error(error, missing);
    return;
  }
  failures_->waiting.push_back(
      [*this, error] { set_error(error, *failures_->missing); });
  if (failures_->waiting.size() > 1) {
    return;
  }
  // Asks on this thread where no other can be had.
  lock.unlock();
  failures_->roll_call->ask([failures = failures_](const std::string& missing) {
    std::vector<std::function<void()>> waiting;
    {
      const std::lock_guard lock(failures->mutex);
      failures->missing = missing;
      waiting.swap(failures->waiting);
    }
    for (const auto& tell : waiting) {
      tell();
    }
  });
}

void BucketResult::set_error(
    const std::exception_ptr& error, const std::string& missing) const {
  const Place place{
      .rank = failures_->rank,
      .hook = failures_->hook,
      .bucket = static_cast<std::int64_t>(index_),
      .peer = missing};
  record_->result->setError(
      is_comm_error(error) ? with_place<CommError>(error, place)
                           : with_place<Error>(error_of_hook(error), place));
}

void BucketResult::complete(const Future& done) const {
  if (auto error = done.error()) {
    fail_with(error);
    return;
  }
  try {
    const at::NoGradGuard no_grad;
    at::Tensor value = result_for(buffer_, done.wait());
    record_->reduced = Step::Clock::now();
    record_->result->markCompleted(c10::IValue(std::move(value)));
  } catch (...) {
    fail_with(std::current_exception());
  }
}

}  // namespace gradwire
