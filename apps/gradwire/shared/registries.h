#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "gradwire/base/options.h"

namespace gradwire::apps {

// What the registries of hooks and codecs have in common when they are shown.
struct SpecRow {
  // As it is written in a spec, "fp16[(hook)]" where a hook may follow.
  std::string name;
  std::string summary;
  std::vector<Option> options;
};

// Of both registries, "none" first of the hooks.
std::vector<SpecRow> hook_rows();
std::vector<SpecRow> codec_rows();

// For a terminal: a line for each row and, indented, for each of its options.
std::string to_text(const std::vector<SpecRow>& rows);

// For docs/: the options of all rows, those that are the same in one line.
std::string options_to_markdown(const std::vector<SpecRow>& rows);

// name, default, range and help of each.
nlohmann::json options_to_json(const std::vector<Option>& options);

}  // namespace gradwire::apps
