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

// Of who is whose: ranks may be threads.
std::mutex& users_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

CheckedHook::CheckedHook(HookSpec spec)
    : text_(spec.text()), spec_(std::move(spec)) {}

CheckedHook::CheckedHook(std::shared_ptr<Hook> hook, bool shareable)
    : text_(describe(*hook)), hook_(std::move(hook)), shareable_(shareable) {}

CheckedHook::CheckedHook(
    std::shared_ptr<const HookAround> around, CheckedHook inner)
    : text_(around->text(inner.text())),
      around_(std::move(around)),
      inner_(std::make_shared<const CheckedHook>(std::move(inner))) {}

void CheckedHook::check_parameters(const Parameters& parameters) const {
  if (around_) {
    around_->check(parameters);
    inner_->check_parameters(parameters);
  }
}

void CheckedHook::check_free(const void* user) const {
  if (around_) {
    inner_->check_free(user);
    return;
  }
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
  if (around_) {
    return around_->make(inner_->make(group, user), group, text_);
  }
  if (hook_) {
    const std::lock_guard lock(users_mutex());
    hook_->user_ = user;
    return hook_;
  }
  return is_none() ? make_hook("allreduce", group) : spec_->make(group);
}

CheckedHook HookChoice::check() const {
  if (around_) {
    return CheckedHook(around_, inner_->check());
  }
  if (!spec_.empty()) {
    return CheckedHook(HookSpec(spec_));
  }
  if (!hook_) {
    fail("hook", "got an empty spec or a null hook, expected a hook");
  }
  return CheckedHook(hook_, shareable_);
}

}  // namespace gradwire
