#include "gradwire/hook/registry.h"

#include <algorithm>
#include <mutex>

#include "gradwire/base/error.h"
#include "gradwire/base/spec.h"
#include "gradwire/codec/codec.h"
#include "gradwire/hook/compressed.h"

// The only list of hooks. A hook is a file of this name beside this one that
// defines `HookInfo <name>_hook()`; every codec is a hook by itself.
#define GRADWIRE_HOOKS(HOOK, CODECS) \
  HOOK(allreduce)                    \
  CODECS                             \
  HOOK(powersgd)                     \
  HOOK(batched_powersgd)             \
  HOOK(post_local_sgd)               \
  HOOK(noop)

namespace gradwire {

#define GRADWIRE_DECLARE(name) HookInfo name##_hook();
GRADWIRE_HOOKS(GRADWIRE_DECLARE, )
#undef GRADWIRE_DECLARE

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<HookInfo> rows;

  Registry() {
#define GRADWIRE_ADD(name) rows.push_back(name##_hook());
    GRADWIRE_HOOKS(GRADWIRE_ADD, add_codecs();)
#undef GRADWIRE_ADD
  }

  void add_codecs() {
    for (const codec::CodecInfo& codec : codec::codecs()) {
      rows.push_back(codec_hook(codec));
    }
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

HookInfo find_row(const std::string& name) {
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
  if (spec.inner && info.plain_around && !spec.options.empty()) {
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

struct HookSpec::Level {
  explicit Level(const Spec& spec)
      : info(find_row(spec.name)), options(check(spec, info)) {
    if (spec.inner) {
      inner = std::make_unique<const Level>(*spec.inner);
    }
  }

  // Without the options that change nothing.
  Spec canonical(Spec spec) const {
    for (const Option& option : info.options) {
      if (options.is_fallback(option)) {
        spec.options.erase(option.name);
      }
    }
    if (inner) {
      spec.inner = std::make_shared<const Spec>(inner->canonical(*spec.inner));
    }
    return spec;
  }
  bool stays_local() const {
    return info.result == HookInfo::Result::kLocal ||
           (inner && inner->stays_local());
  }
  std::unique_ptr<Hook> make(const Group& group) const {
    HookContext context{group, options, {}};
    if (inner) {
      context.make_inner = [this](const Group& at) { return inner->make(at); };
    }
    return info.make(std::move(context));
  }

  HookInfo info;
  Options options;
  std::unique_ptr<const Level> inner;
};

HookSpec::HookSpec(const std::string& text) {
  const Spec spec = parse_spec(text);
  text_ = to_string(spec);
  if (text_ != "none") {
    hook_ = std::make_shared<const Level>(spec);
    text_ = to_string(hook_->canonical(spec));
  }
}

bool HookSpec::is_plain_average() const {
  return is_none() || (hook_->info.plain_average && text_ == hook_->info.name);
}

const Options* HookSpec::find(const std::string& name) const {
  for (const Level* level = hook_.get(); level; level = level->inner.get()) {
    if (level->info.name == name) {
      return &level->options;
    }
  }
  return nullptr;
}

bool HookSpec::stays_local() const {
  return !is_none() && hook_->stays_local();
}

std::unique_ptr<Hook> HookSpec::make(const Group& group) const {
  if (is_none()) {
    fail("hook", "'none' is no hook, expected one that can be made");
  }
  return hook_->make(group);
}

std::unique_ptr<Hook> make_hook(const std::string& spec, const Group& group) {
  return HookSpec(spec).make(group);
}

std::string check_hook_spec(const std::string& spec) {
  return HookSpec(spec).text();
}

}  // namespace gradwire
