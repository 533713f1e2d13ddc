#include "gradwire/hook/choice.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <typeinfo>

#include "gradwire/base/error.h"
#include "gradwire/base/spec.h"
#include "gradwire/hook/registry.h"

namespace gradwire {
namespace {

bool is_local(const Spec& spec) {
  const auto known = hooks();
  const auto info = std::ranges::find(known, spec.name, &HookInfo::name);
  return (info != known.end() && info->result == HookInfo::Result::kLocal) ||
         (spec.inner && is_local(*spec.inner));
}

}  // namespace

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

bool HookChoice::is_plain_average() const {
  if (hook_) {
    return false;
  }
  const auto known = hooks();
  const auto info = std::ranges::find(known, text(), &HookInfo::name);
  return is_none() || (info != known.end() && info->plain_average);
}

bool HookChoice::stays_local() const {
  return !hook_ && !is_none() && is_local(parse_spec(text()));
}

std::shared_ptr<Hook> HookChoice::make(const Group& group) const {
  return hook_ ? hook_ : make_hook(spec_, group);
}

}  // namespace gradwire
