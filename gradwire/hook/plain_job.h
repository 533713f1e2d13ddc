#pragma once

// Private to gradwire: buckets that go uncompressed through a hook's lane.

#include <atomic>
#include <memory>

#include "gradwire/comm/lane.h"

namespace gradwire {

// Averages in full, on the same lane as what is compressed, so that all ranks
// keep the same order. The result is the sum: a new tensor where the values are
// sparse.
class PlainJob : public Lane::Job {
 public:
  // In place; sparse values too. `not_finite` is set when an average is not.
  PlainJob(
      at::Tensor values,
      int world,
      std::shared_ptr<std::atomic<bool>> not_finite);

  std::span<const Step> steps() const override;

 private:
  void send(const Lane::Groups& groups);
  void check(const Lane::Groups& groups);

  at::Tensor values_;
  int world_;
  std::shared_ptr<std::atomic<bool>> not_finite_;
  Future sum_;
};

}  // namespace gradwire
