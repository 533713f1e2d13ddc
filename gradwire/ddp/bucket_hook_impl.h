#pragma once

// Private to gradwire: a hook for those who hold buckets and no DDP.

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <memory>
#include <optional>
#include <string>

#include "gradwire/ddp/adapter.h"

namespace gradwire {

// Reduces Torch's buckets one by one, as a function given to Torch's
// register_comm_hook must. One serves one DDP. Not thread safe.
class BucketHook {
 public:
  // Goes on as the hook that had `state`, if there is one. `refusal`: why this
  // rank has no state although it should, empty otherwise; it becomes an Error
  // on every rank. Collective over `group`.
  BucketHook(
      const Group& group,
      const std::string& spec,
      const std::optional<HookState>& state,
      const std::string& refusal);

  // With the same buckets in the same order on all ranks. The future holds a
  // tensor.
  Future::Raw reduce(c10d::GradBucket& bucket);

  // Between two iterations.
  Hook& hook() const {
    return adapter_.hook();
  }

 private:
  HookAdapter adapter_;
  std::unique_ptr<c10d::CommHookInterface> comm_hook_;
};

}  // namespace gradwire
