#include "apps/gradwire/shared/registries.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/gradwire/shared/markdown.h"
#include "gradwire/base/text.h"
#include "gradwire/codec/codec.h"
#include "gradwire/hook/registry.h"

namespace gradwire::apps {
namespace {

// The name and, indented, one option of a row.
struct Line {
  std::string left;
  std::string right;
};

std::vector<Line> lines_of(const SpecRow& row) {
  std::vector<Line> lines{{row.name, row.summary}};
  for (const auto& option : row.options) {
    lines.push_back(
        {concat("  ", option.name, "=", describe_fallback(option)),
         concat(option.help, " (", describe_range(option), ")")});
  }
  return lines;
}

// An option as several hooks have it.
struct SharedOption {
  std::vector<std::string> owners;
  // Name, default, values, meaning.
  std::vector<std::string> cells;
};

std::vector<SharedOption> shared_options(const std::vector<SpecRow>& rows) {
  std::vector<SharedOption> shared;
  for (const auto& row : rows) {
    const std::string owner =
        code(row.name.substr(0, row.name.find_first_of("[(")));
    for (const auto& option : row.options) {
      const std::vector<std::string> cells{
          code(option.name),
          code(describe_fallback(option)),
          describe_range(option),
          option.help};
      const auto same = std::ranges::find(shared, cells, &SharedOption::cells);
      if (same != shared.end()) {
        same->owners.push_back(owner);
      } else {
        shared.push_back({{owner}, cells});
      }
    }
  }
  return shared;
}

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

}  // namespace

std::vector<SpecRow> hook_rows() {
  std::vector<SpecRow> rows{
      {"none", "plain averaging by PyTorch's Reducer, without a hook", {}}};
  for (const auto& info : hooks()) {
    rows.push_back({name_of(info), info.summary, info.options});
  }
  return rows;
}

std::vector<SpecRow> codec_rows() {
  std::vector<SpecRow> rows;
  for (const auto& info : codec::codecs()) {
    rows.push_back({info.name, info.summary, info.options});
  }
  return rows;
}

std::string to_text(const std::vector<SpecRow>& rows) {
  std::vector<Line> lines;
  for (const auto& row : rows) {
    const auto own = lines_of(row);
    lines.insert(lines.end(), own.begin(), own.end());
  }
  std::size_t width = 0;
  for (const auto& line : lines) {
    width = std::max(width, line.left.size());
  }
  std::ostringstream out;
  for (const auto& line : lines) {
    out << std::left << std::setw(static_cast<int>(width)) << line.left << "  "
        << line.right << "\n";
  }
  return out.str();
}

std::string options_to_markdown(const std::vector<SpecRow>& rows) {
  MarkdownTable table({"option", "of", "default", "values", "meaning"});
  for (const auto& option : shared_options(rows)) {
    table.add(
        {option.cells[0],
         join(option.owners),
         option.cells[1],
         option.cells[2],
         option.cells[3]});
  }
  return table.text();
}

nlohmann::json options_to_json(const std::vector<Option>& options) {
  auto rows = nlohmann::json::array();
  for (const auto& option : options) {
    rows.push_back(
        {{"name", option.name},
         {"default", describe_fallback(option)},
         {"range", describe_range(option)},
         {"help", option.help}});
  }
  return rows;
}

}  // namespace gradwire::apps
