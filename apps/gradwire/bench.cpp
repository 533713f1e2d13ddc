#include "apps/gradwire/bench.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/gradwire/bench_measure.h"
#include "apps/gradwire/bench_peer.h"
#include "apps/gradwire/models.h"
#include "apps/gradwire/ranges.h"
#include "gradwire/base/error.h"
#include "gradwire/base/files.h"
#include "gradwire/hook/registry.h"

namespace gradwire::apps {
namespace {

constexpr int kMostRanks = 64;
constexpr const char* kInNamespace = "--in-namespace";

void check(const BenchOptions& options) {
  check_range("nproc", options.nproc, 2, kMostRanks);
  check_range("steps", options.steps, 1, 100000);
  check_range("rounds", options.rounds, 1, 100000);
  check_range("warmup", options.warmup, 1, 100000);
  check_range<std::int64_t>("batch", options.batch, 1, 1 << 20);
  check_range("bucket-mb", options.bucket_mb, 1e-3, 1e5);
  check_range("timeout", options.timeout_s, 0.0, 1e6);
  check_model(options.model);
  if (!options.attach.empty() && options.peer.empty()) {
    fail("app", "--attach needs --peer, a Python with torch and gradwire");
  }
  if (!options.json.empty()) {
    check_writable_file(options.json);
  }
}

std::vector<std::string> canonical_hooks(const std::string& list) {
  auto specs = split_specs(list);
  for (auto& spec : specs) {
    spec = check_hook_spec(spec);
  }
  return specs;
}

}  // namespace

int bench(
    const BenchOptions& options, const std::vector<std::string>& command) {
  check(options);
  const auto hooks = canonical_hooks(options.hooks);
  const auto attached = options.attach.empty()
                            ? std::vector<std::string>()
                            : canonical_hooks(options.attach);
  const auto links = parse_links(options.links);
  if (!options.in_namespace) {
    if (!options.peer.empty()) {
      check_peer(options);
    }
    if (std::ranges::any_of(links, &Link::shaped)) {
      check_congestion(options.congestion);
      auto again = command;
      again.push_back(kInNamespace);
      reexecute_in_namespace(again);
    }
  } else {
    bring_up_loopback();
  }
  const auto report = Measurement(options, hooks, attached).run(links);
  std::cout << to_table(report) << std::flush;
  if (!options.json.empty()) {
    write_atomically(options.json, to_json(report).dump(1) + "\n");
    std::cout << "samples in " << options.json << std::endl;
  }
  return all_identical(report) ? 0 : 1;
}

}  // namespace gradwire::apps
