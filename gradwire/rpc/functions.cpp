#include "gradwire/rpc/functions.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "gradwire/base/error.h"
#include "gradwire/rpc/functions_impl.h"

namespace gradwire::rpc {
namespace {

struct Functions {
  std::mutex mutex;
  // Nothing is removed, so pointers to elements stay valid.
  std::map<std::string, const Function> by_name;
};

Functions& functions() {
  // Never destroyed: handlers may still run while static objects are destroyed.
  static auto* all = new Functions;
  return *all;
}

void insert(const std::string& name, Function function) {
  Functions& all = functions();
  const std::lock_guard lock(all.mutex);
  if (!all.by_name.emplace(name, std::move(function)).second) {
    fail("rpc", "a function '", name, "' is registered already");
  }
}

}  // namespace

bool is_function_name(const std::string& name) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.';
  };
  return !name.empty() && name.front() != '.' && name.back() != '.' &&
         name.find("..") == std::string::npos &&
         std::ranges::all_of(name, fits);
}

void add_function(const std::string& name, Function function) {
  if (!is_function_name(name) || name.starts_with(kOwnNames)) {
    fail(
        "rpc",
        "a function cannot be called '",
        name,
        "', expected letters, digits, '_' and single dots in between, not "
        "beginning with '",
        kOwnNames,
        "'");
  }
  insert(name, std::move(function));
}

void add_own_function(const std::string& name, Function function) {
  insert(kOwnNames + name, std::move(function));
}

const Function* find_function(const std::string& name) {
  Functions& all = functions();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_name.find(name);
  return found == all.by_name.end() ? nullptr : &found->second;
}

std::string known_functions() {
  Functions& all = functions();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& [known, function] : all.by_name) {
    if (!known.starts_with(kOwnNames)) {
      names.push_back(known);
    }
  }
  return names.empty() ? "none is registered there"
                       : concat("registered there: ", join(names));
}

}  // namespace gradwire::rpc
