#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/ddp/bucket_hook_impl.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/hook/registry.h"

namespace gradwire {
namespace {

std::vector<Fact> facts_of(
    const std::string& hook, const std::optional<HookState>& state) {
  std::vector<Fact> facts{{"hook", hook}};
  if (state) {
    for (const auto& [name, number] : state->numbers) {
      facts.push_back({name, concat(number)});
    }
  }
  return facts;
}

}  // namespace

BucketHook::BucketHook(
    const Group& group,
    const std::string& spec,
    const std::optional<HookState>& state,
    const std::string& refusal)
    : adapter_(group.rank(), std::make_unique<RollCall>(group)),
      comm_hook_(adapter_.make_comm_hook()) {
  std::string text;
  agree_checked(group, "the hook", [&] {
    if (!refusal.empty()) {
      fail("ddp", refusal);
    }
    text = check_hook_spec(spec);
    return facts_of(text, state);
  });
  adapter_.set_hook(make_hook(text, group), text);
  if (state) {
    check_numbers(hook(), *state);
    hook().load(*state);
  }
}

Future::Raw BucketHook::reduce(c10d::GradBucket& bucket) {
  return comm_hook_->runHook(bucket);
}

}  // namespace gradwire
