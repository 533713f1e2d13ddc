// The exact average: scale by one over the number of ranks, then sum. What DDP
// does without a hook, as a hook, with the same roundings.

#include <ATen/core/Tensor.h>

#include "gradwire/hook/hook.h"

namespace gradwire {
namespace {

class Allreduce : public Hook {
 public:
  explicit Allreduce(Group group) : group_(std::move(group)) {}

  Future reduce(Bucket& bucket) override {
    // Scaled first, so that a sum of half-precision gradients cannot overflow.
    const at::Tensor& buffer = bucket.buffer();
    if (group_.size() > 1) {
      buffer.mul_(1.0 / group_.size());
    }
    return group_.all_reduce(buffer);
  }

 private:
  Group group_;
};

}  // namespace

HookInfo allreduce_hook() {
  return {
      .name = "allreduce",
      .summary = "full-precision average, nothing compressed",
      .make = [](HookContext context) -> std::unique_ptr<Hook> {
        return std::make_unique<Allreduce>(std::move(context.group));
      },
      .plain_average = true};
}

}  // namespace gradwire
