#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/hook/hook.h"

namespace gradwire {

// All hooks that a spec string can name: the built-in ones in the order of
// registry.cpp, then those of register_hook. Thread safe.
std::vector<HookInfo> hooks();

// Makes a hook of your own available under `info.name` in spec strings. Throws
// Error when the name is taken or not a name. Thread safe.
void register_hook(HookInfo info);

// A spec string with every name and option checked, once. Immutable; copies
// share what was found.
class HookSpec {
 public:
  // Throws Error that says what is wrong and what would be right.
  explicit HookSpec(const std::string& text);

  // The canonical form: options sorted, those that change nothing left out,
  // blanks gone. Specs of one hook have one such form.
  const std::string& text() const {
    return text_;
  }
  // "none": no hook.
  bool is_none() const {
    return hook_ == nullptr;
  }
  // "none", or a hook that does the same.
  bool is_plain_average() const;
  // Every rank keeps its own gradients, also inside of another hook.
  bool stays_local() const;

  // The options of the hook of this name, outside or in parentheses; null if
  // there is none.
  const Options* find(const std::string& name) const;

  // Not for "none". Not collective by itself, though a hook may connect when it
  // is made.
  std::unique_ptr<Hook> make(const Group& group) const;

 private:
  struct Level;

  std::string text_;
  std::shared_ptr<const Level> hook_;
};

// For specs that are used once: the hook, or only the canonical form.
std::unique_ptr<Hook> make_hook(const std::string& spec, const Group& group);
std::string check_hook_spec(const std::string& spec);

}  // namespace gradwire
