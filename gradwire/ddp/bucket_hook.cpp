#include "gradwire/ddp/bucket_hook.h"

#include "gradwire/base/text.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/ddp/hooked_reducer.h"

namespace gradwire {

BucketHook::BucketHook(
    const Group& group,
    const std::string& spec,
    const std::function<std::optional<HookState>()>& find_state)
    : hooked_(HookedReducer::make(nullptr, {}, group, group)) {
  std::optional<HookState> state;
  std::optional<CheckedHook> hook;
  agree_checked(group, "the hook", [&] {
    state = find_state();
    hook = HookChoice(spec).check();
    return std::vector<Fact>{
        {"hook", hook->text()}, {"its state", state ? "given" : "none"}};
  });
  hooked_->install(*hook);
  if (state) {
    hooked_->set_hook_state(*state);
  }
}

void BucketHook::set_state(const HookState& state) {
  hooked_->set_hook_state(state);
}

BucketHook::~BucketHook() = default;

Future::Raw BucketHook::reduce(c10d::GradBucket& bucket) {
  return hooked_->reduce(bucket);
}

HookState BucketHook::state() const {
  return hooked_->hook_state();
}

std::vector<ParameterReport> BucketHook::report() const {
  return hooked_->report();
}

}  // namespace gradwire
