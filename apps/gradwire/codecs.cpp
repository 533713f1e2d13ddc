#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/gradwire/cli/subcommand.h"
#include "apps/gradwire/shared/registries.h"
#include "gradwire/codec/codec.h"

namespace gradwire::apps {
namespace {

int list_codecs(bool json) {
  if (!json) {
    std::cout << to_text(codec_rows()) << std::flush;
    return 0;
  }
  auto rows = nlohmann::json::array();
  for (const auto& info : codec::codecs()) {
    rows.push_back(
        {{"name", info.name},
         {"summary", info.summary},
         {"tolerance", info.tolerance},
         {"options", options_to_json(info.options)}});
  }
  std::cout << rows.dump(2) << std::endl;
  return 0;
}

}  // namespace

Subcommand codecs_command() {
  return {
      "codecs",
      "list the codecs with their options",
      [](Flags& flags) -> Action {
        const auto json = std::make_shared<bool>(false);
        flags.add("--json", *json, "as JSON");
        return [json](const auto&) { return list_codecs(*json); };
      }};
}

}  // namespace gradwire::apps
