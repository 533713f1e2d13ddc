#pragma once

// Private to gradwire: how the result of a bucket, or its failure, reaches the
// Reducer.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/future.h"
#include "gradwire/comm/roll_call.h"
#include "gradwire/ddp/step_recorder.h"

namespace gradwire {

// What went wrong in the buckets of one Reducer, and how they are named. Thread
// safe but for `hook`, which changes between two steps.
struct BucketFailures {
  static constexpr std::int64_t kNone = -1;

  BucketFailures(int rank, std::unique_ptr<RollCall> roll_call)
      : rank(rank), roll_call(std::move(roll_call)) {}

  const int rank;
  const std::unique_ptr<RollCall> roll_call;
  // Its spec.
  std::string hook;
  // The first bucket of this step that could not be reduced.
  std::atomic<std::int64_t> first = kNone;
  // It was a collective that failed: the group is of no use any more.
  std::atomic<bool> lost_group = false;

  std::mutex mutex;
  // Who is missing after a collective has failed; nothing while it is being
  // found out.
  std::optional<std::string> missing;
  // Buckets that wait for it.
  std::vector<std::function<void()>> waiting;
};

// What is needed when a bucket's future completes. It outlives the DDP if need
// be and must not own the hook: the thread that completes a collective must not
// be the one that takes its group apart.
class BucketResult {
 public:
  // `buffer`: what the Reducer expects a result for.
  BucketResult(
      std::shared_ptr<BucketFailures> failures,
      std::shared_ptr<BucketRecord> record,
      std::size_t index,
      at::Tensor buffer);

  // The hook's future is done, however it ended.
  void complete(const Future& done) const;
  void fail_with(const std::exception_ptr& error) const;

 private:
  void set_error_later(const std::exception_ptr& error) const;
  void set_error(
      const std::exception_ptr& error, const std::string& missing) const;

  std::shared_ptr<BucketFailures> failures_;
  std::shared_ptr<BucketRecord> record_;
  std::size_t index_;
  at::Tensor buffer_;
};

}  // namespace gradwire
