#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradwire::apps {

struct BenchOptions {
  int nproc = 2;
  // Specs separated by commas; see split_specs.
  std::string hooks = "none,allreduce,noop";
  // Rates as tc writes them, or "loopback"; none given: loopback.
  std::vector<std::string> links;
  // What TCP does about congestion on shaped links, whatever the machine's
  // default is.
  std::string congestion = "cubic";
  std::string model = "mlp:2048";
  // Samples a rank and step.
  std::int64_t batch = 8;
  // Steps of one hook in one round.
  int steps = 10;
  int rounds = 5;
  int warmup = 3;
  double bucket_mb = 25;
  // Longest wait for one turn, in seconds; 0: from the link and the model.
  double timeout_s = 0;
  // A Python with torch, whose own DDP is measured in the same rounds; empty:
  // none.
  std::string peer;
  // Specs separated by commas: what that Python attaches to its DDPs with our
  // package. Empty: nothing.
  std::string attach;
  std::string json;
  // Set by the command itself when it runs in its own network namespace.
  bool in_namespace = false;
};

// What stands before the JSON in a line that a rank of a benchmark answers
// with.
inline constexpr const char* kBenchAnswer = "gradwire-bench ";

// Images the benchmark's models are made for: an mlp gets 1024 inputs.
inline constexpr std::int64_t kBenchImageSide = 32;

}  // namespace gradwire::apps
