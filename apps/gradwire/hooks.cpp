#include "apps/gradwire/hooks.h"

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "gradwire/hook/registry.h"

namespace gradwire::apps {
namespace {

// With what may be in parentheses.
std::string name_of(const HookInfo& info) {
  switch (info.wraps) {
    case HookInfo::Wraps::kNever:
      return info.name;
    case HookInfo::Wraps::kOptionally:
      return info.name + "[(hook)]";
    case HookInfo::Wraps::kAlways:
      return info.name + "(hook)";
  }
  return info.name;
}

nlohmann::json to_json(const HookInfo& info) {
  nlohmann::json options = nlohmann::json::array();
  for (const auto& option : info.options) {
    options.push_back(
        {{"name", option.name},
         {"default", to_string(option.fallback)},
         {"range", describe_range(option)},
         {"help", option.help}});
  }
  return {
      {"name", info.name},
      {"summary", info.summary},
      {"averages", info.result == HookInfo::Result::kAverage},
      {"wraps", info.wraps != HookInfo::Wraps::kNever},
      {"tolerance", info.tolerance},
      {"options", options}};
}

void print_row(const HookInfo& info) {
  std::cout << std::left << std::setw(12) << name_of(info) << info.summary
            << "\n";
  for (const auto& option : info.options) {
    std::cout << "  " << std::setw(18)
              << option.name + "=" + to_string(option.fallback) << option.help
              << " (" << describe_range(option) << ")\n";
  }
}

}  // namespace

int list_hooks(bool json) {
  if (json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& info : hooks()) {
      rows.push_back(to_json(info));
    }
    std::cout << rows.dump(2) << std::endl;
    return 0;
  }
  std::cout << std::left << std::setw(12) << "none"
            << "plain averaging by the Reducer itself\n";
  for (const auto& info : hooks()) {
    print_row(info);
  }
  std::cout << std::flush;
  return 0;
}

}  // namespace gradwire::apps
