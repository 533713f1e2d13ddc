#include "gradwire/ddp/bucket_report.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// The same kind of error with the place added.
std::exception_ptr add_place(
    const std::exception_ptr& error, const std::string& place) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError& e) {
    return std::make_exception_ptr(CommError(e.what() + place));
  } catch (const Error& e) {
    return std::make_exception_ptr(Error(e.what() + place));
  } catch (const c10::Error& e) {
    return std::make_exception_ptr(
        Error(concat("[gradwire.hook] ", e.what_without_backtrace(), place)));
  } catch (const std::exception& e) {
    return std::make_exception_ptr(
        Error(concat("[gradwire.hook] ", e.what(), place)));
  } catch (...) {
    return std::make_exception_ptr(
        Error("[gradwire.hook] the hook threw something unknown" + place));
  }
}

}  // namespace

void BucketReport::fail_with(const std::exception_ptr& error) const {
  const bool lost = is_comm_error(error);
  if (lost) {
    shared->lost_group = true;
  }
  std::int64_t none = kNone;
  const bool first = shared->failed_bucket.compare_exchange_strong(
      none, static_cast<std::int64_t>(index));
  if (!lost) {
    if (first) {
      shared->roll_call->answer();
    }
    set_error(error, "");
    return;
  }
  set_error_later(error);
}

// When it is known who is missing. Not on this thread: its connections must
// be dropped now for others to notice.
void BucketReport::set_error_later(const std::exception_ptr& error) const {
  const std::lock_guard lock(shared->mutex);
  if (shared->missing) {
    set_error(error, *shared->missing);
    return;
  }
  shared->waiting.push_back(
      [*this, error] { set_error(error, *shared->missing); });
  if (shared->waiting.size() > 1) {
    return;
  }
  shared->roll_call->ask([shared = shared](const std::string& missing) {
    std::vector<std::function<void()>> waiting;
    {
      const std::lock_guard lock(shared->mutex);
      shared->missing = missing;
      waiting.swap(shared->waiting);
    }
    for (const auto& tell : waiting) {
      tell();
    }
  });
}

void BucketReport::set_error(
    const std::exception_ptr& error, const std::string& missing) const {
  result->setError(add_place(
      error,
      concat(
          " (hook ",
          shared->text,
          ", rank ",
          shared->rank,
          ", bucket ",
          index,
          ")",
          missing)));
}

void BucketReport::complete(const Future& done) const {
  if (auto error = done.error()) {
    fail_with(error);
    return;
  }
  try {
    const at::Tensor value = scaled(checked(done.wait()));
    shared->reduced = Clock::now();
    result->markCompleted(c10::IValue(value));
  } catch (...) {
    fail_with(std::current_exception());
  }
}

at::Tensor BucketReport::scaled(const at::Tensor& value) const {
  const double scale = shared->scale;
  if (scale == 1) {
    return value;
  }
  // Not in place: a hook may keep what it returns.
  const at::NoGradGuard no_grad;
  return value.mul(scale);
}

// The Reducer reads a dense result from the start of its storage in steps of
// one: what does not lie like that is copied.
at::Tensor BucketReport::checked(at::Tensor value) const {
  if (elems < 0 && value.defined()) {
    return value;
  }
  const bool dense = value.defined() && value.layout() == at::kStrided;
  if (!dense || value.numel() != elems) {
    fail(
        "hook",
        "the hook's result has ",
        dense ? value.numel() : 0,
        " elements, expected ",
        elems);
  }
  value = value.contiguous().view({-1});
  return value.storage_offset() == 0 ? value : value.clone();
}

}  // namespace gradwire
