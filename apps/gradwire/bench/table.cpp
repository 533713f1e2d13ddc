// The report as people read it. Everything in it comes from the JSON, so that
// the two cannot disagree.

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/gradwire/bench/report.h"
#include "gradwire/base/text.h"

namespace gradwire::apps {
namespace {

using nlohmann::json;
using Cells = std::vector<std::string>;

std::string fixed(const json& value, int digits, double scale = 1) {
  if (!value.is_number()) {
    return "-";
  }
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits)
       << scale * value.get<double>();
  return text.str();
}

std::string error_of(const json& row) {
  if (row.at("identical").is_null()) {
    return "-";
  }
  if (!row.at("identical").get<bool>()) {
    return "RANKS DIFFER";
  }
  if (!row.at("relative_error").is_number()) {
    return "not finite";
  }
  std::ostringstream text;
  text << std::scientific << std::setprecision(1)
       << row.at("relative_error").get<double>();
  return text.str();
}

std::string bytes_of(const json& row) {
  const auto& sent = row.at("sent");
  return sent.is_null() ? "-"
                        : human_bytes(
                              sent.at("payload").get<double>() +
                              sent.at("metadata").get<double>());
}

Cells header(bool with_peer) {
  Cells cells{
      "hook",
      "step ms",
      "p10",
      "p90",
      "exposed",
      "sent",
      "x none",
      "error",
      "limit ms",
      "above"};
  if (with_peer) {
    cells.insert(cells.end(), {"x torch", "x its hook"});
  }
  return cells;
}

const char* whose(const json& row) {
  if (!row.contains("peer")) {
    return "";
  }
  return row.at("attached").get<bool>() ? "attached " : "torch ";
}

Cells cells_of(const json& row, bool with_peer) {
  const auto& step = row.at("step_ms");
  const auto above = fixed(row.at("above_limit"), 0, 100);
  Cells cells{
      concat(whose(row), row.at("hook").get<std::string>()),
      fixed(step.at("median"), 1),
      fixed(step.at("p10"), 1),
      fixed(step.at("p90"), 1),
      fixed(row.at("exposed_ms"), 1),
      bytes_of(row),
      fixed(row.at("ratio_to_none"), 2),
      error_of(row),
      fixed(row.at("limit_ms"), 1),
      above == "-" ? above : above + " %"};
  if (with_peer) {
    cells.push_back(fixed(row.value("ratio_to_peer", json()), 2));
    cells.push_back(fixed(row.value("ratio_to_peer_hook", json()), 2));
  }
  return cells;
}

// The first column to the left, numbers to the right.
std::string aligned(const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths(rows.at(0).size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::ostringstream text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text << (i == 0 ? "" : "  ") << (i == 0 ? std::left : std::right)
           << std::setw(static_cast<int>(widths[i])) << row[i];
    }
    text << "\n";
  }
  return text.str();
}

// What the columns do not show of hooks with low rank.
std::string note_of(const json& row) {
  const auto hook = row.at("hook").get<std::string>();
  if (row.contains("compression_ratio")) {
    const auto& norm = row.at("residual_norm");
    return concat(
        hook,
        " sent ",
        fixed(row.at("compression_ratio"), 1),
        " times fewer numbers than gradients have",
        norm.is_null() ? "" : concat(", residual norm ", fixed(norm, 4)),
        "\n");
  }
  const bool ours = !row.contains("peer");
  if (ours && hook.find("powersgd") != std::string::npos) {
    return concat(hook, " had not begun to compress, start=0 begins at once\n");
  }
  return "";
}

}  // namespace

std::string to_table(const BenchReport& report) {
  const json data = to_json(report);
  const bool with_peer = !report.options.peer.empty();
  std::ostringstream text;
  text << report.options.model << ", " << fixed(data.at("parameters"), 1, 1e-6)
       << " M parameters, " << report.options.nproc << " ranks, batch "
       << report.options.batch << " a rank, " << report.options.rounds
       << " rounds of " << report.options.steps << " steps after "
       << report.options.warmup << " to warm up\n";
  for (const auto& link : data.at("links")) {
    text << "\n" << link.at("link").get<std::string>();
    if (!link.at("congestion").is_null()) {
      text << ", " << link.at("congestion").get<std::string>();
    }
    text << ": compute " << fixed(link.at("compute_ms"), 1)
         << " ms, first gradient after "
         << fixed(link.at("first_gradient_ms"), 1) << " ms\n";
    std::vector<Cells> rows{header(with_peer)};
    for (const auto& row : data.at("rows")) {
      if (row.at("link") == link.at("link")) {
        rows.push_back(cells_of(row, with_peer));
      }
    }
    text << aligned(rows);
    for (const auto& row : data.at("rows")) {
      text << (row.at("link") == link.at("link") ? note_of(row) : "");
    }
  }
  for (const auto& [hook, why] : report.peer_lacks) {
    text << "torch has nothing to compare with " << hook << ": " << why << "\n";
  }
  return text.str();
}

}  // namespace gradwire::apps
