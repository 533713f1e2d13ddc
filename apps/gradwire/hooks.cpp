#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/gradwire/cli/subcommand.h"
#include "apps/gradwire/shared/registries.h"
#include "gradwire/hook/registry.h"

namespace gradwire::apps {
namespace {

nlohmann::json to_json(const HookInfo& info) {
  return {
      {"name", info.name},
      {"summary", info.summary},
      {"averages", info.result == HookInfo::Result::kAverage},
      {"wraps", info.wraps != HookInfo::Wraps::kNever},
      {"tolerance", info.tolerance},
      {"options", options_to_json(info.options)}};
}

int list_hooks(bool json) {
  if (!json) {
    std::cout << to_text(hook_rows()) << std::flush;
    return 0;
  }
  auto rows = nlohmann::json::array();
  for (const auto& info : hooks()) {
    rows.push_back(to_json(info));
  }
  std::cout << rows.dump(2) << std::endl;
  return 0;
}

}  // namespace

Subcommand hooks_command() {
  return {
      "hooks", "list the hooks with their options", [](Flags& flags) -> Action {
        const auto json = std::make_shared<bool>(false);
        flags.add("--json", *json, "as JSON");
        return [json](const auto&) { return list_hooks(*json); };
      }};
}

}  // namespace gradwire::apps
