#pragma once

// Private to gradwire: buckets that go uncompressed through a hook's lane.

#include <atomic>
#include <memory>

#include "gradwire/comm/lane.h"

namespace gradwire {

// Averages in full, on the same lane as what is compressed, so that all ranks
// keep the same order. Uses the first phase and the next, whatever they are.
class PlainJob : public Lane::Job {
 public:
  // In place; sparse values too. `not_finite` is set when an average is not.
  PlainJob(
      at::Tensor values,
      int world,
      std::shared_ptr<std::atomic<bool>> not_finite);

  Future future() const {
    return Future(result_);
  }

  void wait() override;
  void run(std::size_t phase, const Lane::Groups& groups) override;
  void fail(const std::exception_ptr& error) noexcept override;

 private:
  at::Tensor values_;
  int world_;
  std::shared_ptr<std::atomic<bool>> not_finite_;
  Future::Raw result_;
  Future sum_;
};

}  // namespace gradwire
