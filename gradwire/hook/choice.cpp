#include "gradwire/hook/choice.h"

#include <c10/util/Type.h>

#include <typeinfo>

#include "gradwire/base/error.h"
#include "gradwire/hook/registry.h"

namespace gradwire {

std::string HookChoice::text() const {
  if (!spec_.empty()) {
    return check_hook_spec(spec_);
  }
  if (!hook_) {
    fail("hook", "got an empty spec or a null hook, expected a hook");
  }
  const Hook& hook = *hook_;
  return "custom " + c10::demangle(typeid(hook).name());
}

bool HookChoice::is_none() const {
  return !hook_ && text() == "none";
}

std::shared_ptr<Hook> HookChoice::make(const Group& group) const {
  return hook_ ? hook_ : make_hook(spec_, group);
}

}  // namespace gradwire
