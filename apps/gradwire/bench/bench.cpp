#include "apps/gradwire/bench/bench.h"

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/gradwire/bench/measure.h"
#include "apps/gradwire/bench/peer.h"
#include "apps/gradwire/cli/ranges.h"
#include "apps/gradwire/cli/subcommand.h"
#include "apps/gradwire/shared/models.h"
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

// Returns 0, or 1 when a hook's averages differ between ranks. `again` starts
// this program with the same arguments.
int bench(const BenchOptions& options, const std::vector<std::string>& again) {
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
      auto inside = again;
      inside.push_back(kInNamespace);
      reexecute_in_namespace(inside);
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

void add_flags(Flags& flags, BenchOptions& options) {
  flags.add("--nproc,-n", options.nproc, "number of ranks");
  flags.add("--hooks", options.hooks, "specs of hooks, separated by commas");
  flags.add(
      "--link",
      options.links,
      "rates such as 1gbit,100mbit, or loopback, which is the default");
  flags.add(
      "--congestion",
      options.congestion,
      "TCP's congestion control on links with a rate");
  flags.add("--model", options.model, "an image model, see `gradwire train`");
  flags.add("--batch", options.batch, "samples per step and rank");
  flags.add("--steps", options.steps, "steps per round and hook");
  flags.add("--rounds", options.rounds, "rounds, each of all hooks in turn");
  flags.add(
      "--warmup",
      options.warmup,
      "steps per hook and link that are not counted");
  flags.add("--bucket-mb", options.bucket_mb, "size of buckets, in MiB");
  flags.add(
      "--timeout",
      options.timeout_s,
      "longest wait for a turn, in seconds; 0: from the link and the model");
  flags.add(
      "--peer",
      options.peer,
      "a Python whose torch is measured in the same rounds");
  flags.add(
      "--attach",
      options.attach,
      "hooks that the peer attaches to its DDP with the gradwire package");
  flags.add("--json", options.json, "file for rows and samples");
  flags.add(kInNamespace, options.in_namespace, "the network is made already")
      .internal = true;
}

}  // namespace

Subcommand bench_command() {
  return {
      "bench",
      "measure hooks side by side, on links too",
      [](Flags& flags) -> Action {
        const auto options = std::make_shared<BenchOptions>();
        add_flags(flags, *options);
        return [options](const std::vector<std::string>& again) {
          return bench(*options, again);
        };
      }};
}

}  // namespace gradwire::apps
