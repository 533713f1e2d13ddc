#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/gradwire/bench/bench.h"
#include "apps/gradwire/bench/lists.h"
#include "gradwire/base/bytes.h"

namespace gradwire::apps {

// What was measured of one hook on one link.
struct Series {
  std::string hook;
  // Of PyTorch, whose version this is; empty: ours.
  std::string torch;
  // Ours on PyTorch's DDP.
  bool attached = false;
  // Measured for other rows' ratios, not a row itself.
  bool hidden = false;
  // Gradients stay local, so there is no average to check.
  bool local = false;
  // By round, then step: the slowest rank's time.
  std::vector<std::vector<double>> step_ms = {};
  // By step: what the rank that waited least had to wait. Empty for PyTorch.
  std::vector<double> exposed_ms = {};
  // By step: when the last rank's first bucket was full. For noop only.
  std::vector<double> first_bucket_ms = {};
  Bytes sent = {};
  // Of what rank 0 sent, and what it says of every parameter: hooks that treat
  // them differently do, once they compress.
  double compression_ratio = 1;
  nlohmann::json residual_norm = {};
  nlohmann::json by_parameter = {};
  double relative_error = 0;
  bool identical = true;
};

struct LinkResult {
  Link link;
  // Ours first, then PyTorch's.
  std::vector<Series> series;
};

struct BenchReport {
  BenchOptions options;
  std::int64_t parameters = 0;
  std::vector<LinkResult> links;
  // Hooks that PyTorch cannot put anything beside, and why.
  std::vector<std::pair<std::string, std::string>> peer_lacks;
};

// The value below which the fraction `q` of them lies, interpolated.
double quantile(std::vector<double> values, double q);

// Median over rounds of how many times faster `fast` is than `base`.
double speed_up(const Series& base, const Series& fast);

// What no hook that sends `sent` bytes can be faster than on this link; not
// known on loopback.
std::optional<double> limit_ms(const LinkResult& result, std::int64_t sent);

bool all_identical(const BenchReport& report);
nlohmann::json to_json(const BenchReport& report);
// A table per link.
std::string to_table(const BenchReport& report);

}  // namespace gradwire::apps
