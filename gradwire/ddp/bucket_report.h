#pragma once

// Private to gradwire: how the result of a bucket, or its failure, reaches the
// Reducer.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/future.h"
#include "gradwire/comm/roll_call.h"

namespace gradwire {

// What is needed when a bucket's future completes. It outlives the adapter if
// need be and must not own the hook: the thread that completes a collective
// must not be the one that takes its group apart.
struct BucketReport {
  using Clock = std::chrono::steady_clock;

  struct Shared {
    std::string text;
    int rank = 0;
    std::unique_ptr<RollCall> roll_call;
    // Of what follows.
    std::mutex mutex;
    // Who is missing after a collective has failed; nothing while it is being
    // found out.
    std::optional<std::string> missing;
    // Buckets that wait for it.
    std::vector<std::function<void()>> waiting;
    // The first bucket of this backward that could not be reduced.
    std::atomic<std::int64_t> failed_bucket = kNone;
    std::atomic<bool> lost_group = false;
    std::atomic<double> scale = 1;
    // When the last result of this backward was there.
    std::atomic<Clock::time_point> reduced{};
  };
  static constexpr std::int64_t kNone = -1;

  std::shared_ptr<Shared> shared;
  Future::Raw result;
  std::size_t index = 0;
  std::int64_t elems = -1;

  // The hook's future is done, however it ended.
  void complete(const Future& done) const;
  void fail_with(const std::exception_ptr& error) const;

 private:
  void set_error_later(const std::exception_ptr& error) const;
  void set_error(
      const std::exception_ptr& error, const std::string& missing) const;
  at::Tensor scaled(const at::Tensor& value) const;
  at::Tensor checked(at::Tensor value) const;
};

}  // namespace gradwire
