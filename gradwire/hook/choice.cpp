#include "gradwire/hook/choice.h"

#include <c10/util/Type.h>

#include <mutex>
#include <typeinfo>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

std::string describe(const Hook& hook) {
  return "custom " + c10::demangle(typeid(hook).name());
}

// Guards the users of all hooks: ranks may be threads of one process.
std::mutex& users_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

CheckedHook::CheckedHook(HookSpec spec)
    : text_(spec.text()), spec_(std::move(spec)) {}

CheckedHook::CheckedHook(std::shared_ptr<Hook> hook, bool shareable)
    : text_(describe(*hook)), hook_(std::move(hook)), shareable_(shareable) {}

void CheckedHook::check_free(const void* user) const {
  if (!hook_ || shareable_) {
    return;
  }
  const std::lock_guard lock(users_mutex());
  const auto current = hook_->user_.lock();
  if (current && current.get() != user) {
    fail(
        "hook",
        "hook '",
        text_,
        "' serves another DDP already, expected an object of its own for each");
  }
}

std::shared_ptr<Hook> CheckedHook::make(
    const Group& group, const std::shared_ptr<const void>& user) const {
  check_free(user.get());
  if (hook_) {
    const std::lock_guard lock(users_mutex());
    hook_->user_ = user;
    return hook_;
  }
  return is_none() ? make_hook("allreduce", group) : spec_->make(group);
}

CheckedHook HookChoice::check() const {
  if (!spec_.empty()) {
    return CheckedHook(HookSpec(spec_));
  }
  if (!hook_) {
    fail("hook", "got an empty spec or a null hook, expected a hook");
  }
  return CheckedHook(hook_, shareable_);
}

}  // namespace gradwire
