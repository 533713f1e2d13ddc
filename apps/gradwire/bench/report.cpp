#include "apps/gradwire/bench/report.h"

#include <ATen/Version.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/gradwire/shared/report_json.h"
#include "gradwire/base/error.h"
#include "gradwire/base/spec.h"

namespace gradwire::apps {
namespace {

using nlohmann::json;

std::vector<double> all_steps(const Series& series) {
  std::vector<double> all;
  for (const auto& round : series.step_ms) {
    all.insert(all.end(), round.begin(), round.end());
  }
  return all;
}

double median(std::vector<double> values) {
  return quantile(std::move(values), 0.5);
}

// The first series of that hook; null when there is none.
const Series* find(
    const LinkResult& result, const std::string& hook, bool of_torch) {
  const auto found = std::ranges::find_if(result.series, [&](const auto& s) {
    return s.hook == hook && s.torch.empty() != of_torch && !s.attached;
  });
  return found == result.series.end() ? nullptr : &*found;
}

json speed_up_or_null(const Series* base, const Series& fast) {
  return base != nullptr ? json(speed_up(*base, fast)) : json();
}

json row_of(const LinkResult& result, const Series& series, int world) {
  const auto steps = all_steps(series);
  const double step = median(steps);
  const bool ours = series.torch.empty();
  json limit;
  json above;
  if (const auto known = limit_ms(result, series.sent.total()); ours && known) {
    limit = *known;
    above = step / *known - 1;
  }
  json row{
      {"hook", series.hook},
      {"link", result.link.name},
      {"world", world},
      {"step_ms",
       {{"median", step},
        {"p10", quantile(steps, 0.1)},
        {"p90", quantile(steps, 0.9)}}},
      {"exposed_ms", ours ? json(median(series.exposed_ms)) : json()},
      {"sent", ours ? to_json(series.sent) : json()},
      {"ratio_to_none", speed_up_or_null(find(result, "none", !ours), series)},
      {"relative_error", series.local ? json() : json(series.relative_error)},
      {"identical", series.local ? json() : json(series.identical)},
      {"limit_ms", limit},
      {"above_limit", above},
      {"samples_ms", series.step_ms}};
  if (!series.by_parameter.empty()) {
    row["compression_ratio"] = series.compression_ratio;
    row["residual_norm"] = series.residual_norm;
    row["by_parameter"] = series.by_parameter;
  }
  if (!ours) {
    row["peer"] = "torch " + series.torch;
    row["attached"] = series.attached;
  }
  if (!ours && !series.attached) {
    return row;
  }
  if (const Series* plain = find(result, "none", true)) {
    row["ratio_to_peer"] = speed_up(*plain, series);
    const auto name = parse_spec(series.hook).name;
    const Series* same = find(result, name, true);
    row["ratio_to_peer_hook"] =
        speed_up_or_null(name == "none" ? nullptr : same, series);
  }
  return row;
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) {
    return std::nan("");
  }
  std::ranges::sort(values);
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto above = std::min(below + 1, values.size() - 1);
  const double share = place - static_cast<double>(below);
  return values[below] + share * (values[above] - values[below]);
}

double speed_up(const Series& base, const Series& fast) {
  std::vector<double> ratios;
  const auto rounds = std::min(base.step_ms.size(), fast.step_ms.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    ratios.push_back(median(base.step_ms[round]) / median(fast.step_ms[round]));
  }
  return median(ratios);
}

std::optional<double> limit_ms(const LinkResult& result, std::int64_t sent) {
  const Series* noop = find(result, "noop", false);
  if (!result.link.shaped() || noop == nullptr) {
    return std::nullopt;
  }
  const double compute = median(all_steps(*noop));
  // The burst passes the shaper in no time.
  const auto held_back = sent - result.link.burst_bytes();
  if (held_back <= 0) {
    return compute;
  }
  const double sending =
      static_cast<double>(held_back) / result.link.bytes_per_ms();
  return std::max(compute, median(noop->first_bucket_ms) + sending);
}

bool all_identical(const BenchReport& report) {
  return std::ranges::all_of(report.links, [](const auto& result) {
    return std::ranges::all_of(result.series, [](const auto& series) {
      return series.local || series.identical;
    });
  });
}

json to_json(const BenchReport& report) {
  const auto& options = report.options;
  json rows = json::array();
  json links = json::array();
  for (const auto& result : report.links) {
    const Series* noop = find(result, "noop", false);
    links.push_back(
        {{"link", result.link.name},
         {"bits_per_second",
          result.link.shaped() ? json(result.link.bits_per_second) : json()},
         {"congestion",
          result.link.shaped() ? json(options.congestion) : json()},
         {"compute_ms", median(all_steps(*noop))},
         {"first_gradient_ms", median(noop->first_bucket_ms)}});
    for (const auto& series : result.series) {
      if (!series.hidden) {
        rows.push_back(row_of(result, series, options.nproc));
      }
    }
  }
  json report_json{
      {"schema", 1},
      {"gradwire", GRADWIRE_VERSION},
      {"torch", TORCH_VERSION},
      {"machine",
       {{"processor", at::get_cpu_capability()},
        {"cores", std::thread::hardware_concurrency()}}},
      {"model", options.model},
      {"parameters", report.parameters},
      {"world", options.nproc},
      {"batch", options.batch},
      {"bucket_mb", options.bucket_mb},
      {"steps", options.steps},
      {"rounds", options.rounds},
      {"warmup", options.warmup},
      {"links", links},
      {"rows", rows}};
  for (const auto& [hook, why] : report.peer_lacks) {
    report_json["peer_lacks"][hook] = why;
  }
  return report_json;
}

}  // namespace gradwire::apps
