#include "gradwire/hook/registry.h"

#include <algorithm>
#include <mutex>

#include "gradwire/base/error.h"
#include "gradwire/base/spec.h"

// The only list of hooks. A hook is a file of this name beside this one that
// defines `HookInfo <name>_hook()`.
#define GRADWIRE_HOOKS(X) \
  X(allreduce)            \
  X(fp16)                 \
  X(bf16)                 \
  X(int8)                 \
  X(int4)                 \
  X(fp8)                  \
  X(powersgd)             \
  X(batched_powersgd)     \
  X(noop)

namespace gradwire {

#define GRADWIRE_DECLARE(name) HookInfo name##_hook();
GRADWIRE_HOOKS(GRADWIRE_DECLARE)
#undef GRADWIRE_DECLARE

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<HookInfo> rows;

  Registry() {
#define GRADWIRE_ADD(name) rows.push_back(name##_hook());
    GRADWIRE_HOOKS(GRADWIRE_ADD)
#undef GRADWIRE_ADD
  }
};

Registry& registry() {
  static Registry instance;
  return instance;
}

std::vector<std::string> names() {
  std::vector<std::string> result{"none"};
  for (const auto& info : hooks()) {
    result.push_back(info.name);
  }
  return result;
}

HookInfo find(const std::string& name) {
  for (auto& info : hooks()) {
    if (info.name == name) {
      return info;
    }
  }
  const auto known = names();
  fail(
      "hook",
      "unknown hook '",
      name,
      "', known are ",
      join(known),
      did_you_mean(name, known));
}

// Checks one level of a spec; the options come back complete.
Options check(const Spec& spec, const HookInfo& info) {
  if (info.wraps == HookInfo::Wraps::kAlways && !spec.inner) {
    fail(
        "hook",
        "'",
        spec.name,
        "' wraps another hook, expected ",
        spec.name,
        "(hook)");
  }
  if (info.wraps == HookInfo::Wraps::kNever && spec.inner) {
    fail(
        "hook",
        "'",
        spec.name,
        "' takes no other hook in parentheses, got '",
        to_string(*spec.inner),
        "'");
  }
  if (spec.inner && info.wraps == HookInfo::Wraps::kOptionally &&
      !spec.options.empty()) {
    fail(
        "hook",
        "'",
        spec.name,
        "' around another hook takes no options of its own, got '",
        to_string(spec),
        "'");
  }
  Options options(spec.name, info.options, spec.options);
  if (info.check) {
    info.check(options);
  }
  return options;
}

std::unique_ptr<Hook> make(const Spec& spec, const Group& group) {
  const HookInfo info = find(spec.name);
  HookContext context{group, check(spec, info), nullptr};
  if (spec.inner) {
    context.inner = make(*spec.inner, group);
  }
  return info.make(std::move(context));
}

// Checks all of a spec, and leaves out options that change nothing.
Spec canonical(const Spec& spec) {
  const HookInfo info = find(spec.name);
  const Options options = check(spec, info);
  Spec result = spec;
  for (const Option& option : info.options) {
    if (options.is_fallback(option)) {
      result.options.erase(option.name);
    }
  }
  if (spec.inner) {
    result.inner = std::make_shared<const Spec>(canonical(*spec.inner));
  }
  return result;
}

}  // namespace

std::vector<HookInfo> hooks() {
  const std::lock_guard lock(registry().mutex);
  return registry().rows;
}

void register_hook(HookInfo info) {
  const Spec spec = parse_spec(info.name);
  if (spec.inner || !spec.options.empty() || spec.name != info.name) {
    fail("hook", "register_hook got '", info.name, "', expected a plain name");
  }
  if (!info.make) {
    fail("hook", "register_hook got no way to make '", info.name, "'");
  }
  const std::lock_guard lock(registry().mutex);
  auto& rows = registry().rows;
  if (info.name == "none" ||
      std::ranges::find(rows, info.name, &HookInfo::name) != rows.end()) {
    fail("hook", "a hook named '", info.name, "' is registered already");
  }
  rows.push_back(std::move(info));
}

std::unique_ptr<Hook> make_hook(const std::string& spec, const Group& group) {
  return make(parse_spec(spec), group);
}

std::string check_hook_spec(const std::string& text) {
  const Spec spec = parse_spec(text);
  const std::string written = to_string(spec);
  return written == "none" ? written : to_string(canonical(spec));
}

}  // namespace gradwire
