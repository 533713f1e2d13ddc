#pragma once

// Private to gradwire: a hook for those who hold buckets and no DDP.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/hook/hook.h"

namespace c10d {
class GradBucket;
}

namespace gradwire {

class HookedReducer;

// Reduces Torch's buckets one by one, as a function given to Torch's
// register_comm_hook must. One serves one DDP. Not thread safe.
class BucketHook {
 public:
  // Goes on as the hook that had the state that `find_state` returns, if there
  // is one. What it throws on one rank is an Error on all of them. Collective
  // over `group`.
  BucketHook(
      const Group& group,
      const std::string& spec,
      const std::function<std::optional<HookState>()>& find_state);
  ~BucketHook();

  // With the same buckets in the same order on all ranks. The future holds a
  // tensor.
  Future::Raw reduce(c10d::GradBucket& bucket);

  // Between two iterations. Setting is collective: throws Error on every rank
  // for a state of another hook.
  HookState state() const;
  void set_state(const HookState& state);
  std::vector<ParameterReport> report() const;

 private:
  std::shared_ptr<HookedReducer> hooked_;
};

}  // namespace gradwire
