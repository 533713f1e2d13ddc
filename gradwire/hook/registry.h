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

// The hook that `spec` describes, every name and option checked. Not
// collective by itself, though a hook may connect when it is made. Throws Error
// that says what is wrong and what would be right.
std::unique_ptr<Hook> make_hook(const std::string& spec, const Group& group);

// The canonical form of `spec` with all checks made and no hook: options
// sorted, those that change nothing left out, blanks gone. Specs of one hook
// have one such form. "none" stands for no hook.
std::string check_hook_spec(const std::string& spec);

}  // namespace gradwire
