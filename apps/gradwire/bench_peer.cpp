#include "apps/gradwire/bench_peer.h"

#include <unistd.h>

#include <map>

#include "apps/gradwire/bench_network.h"
#include "apps/gradwire/models.h"
#include "gradwire/base/error.h"
#include "gradwire/base/spec.h"
#include "peer_script.h"

namespace gradwire::apps {

PeerHook peer_hook(const std::string& spec) {
  static const std::map<std::string, PeerHook> kKnown{
      {"none", {"none", ""}},
      {"allreduce", {"", ""}},
      {"noop", {"", ""}},
      {"fp16", {"FP16_COMPRESS", ""}},
      {"bf16", {"", "BF16_COMPRESS is refused by DDP without CUDA and NCCL"}},
      {"int8",
       {"", "QUANTIZE_PER_TENSOR and QUANTIZE_PER_CHANNEL fail on Gloo"}},
      {"powersgd", {"", "POWER_SGD aborts on Gloo"}},
      {"batched_powersgd", {"", "BATCHED_POWER_SGD aborts on Gloo"}}};
  const auto known = kKnown.find(parse_spec(spec).name);
  return known != kKnown.end() ? known->second
                               : PeerHook{"", "PyTorch has no such hook"};
}

namespace {

// Throws Error unless `python` can import `module`.
void check_import(const std::string& python, const std::string& module) {
  if (python.find('/') != std::string::npos &&
      access(python.c_str(), X_OK) != 0) {
    fail(
        "app",
        "--peer '",
        python,
        "' cannot be run, expected a Python with torch");
  }
  const auto result =
      run_tool({python, "-W", "ignore", "-c", concat("import ", module)});
  if (result.code != 0) {
    fail(
        "app",
        "--peer '",
        python,
        "' cannot import ",
        module,
        " (",
        result.output,
        "), expected a Python with ",
        module);
  }
}

}  // namespace

void check_python(const std::string& python) {
  check_import(python, "torch");
}

void check_peer(const BenchOptions& options) {
  const std::string& model = options.model;
  if (model != "mlp" && !model.starts_with("mlp:")) {
    fail(
        "app",
        "--peer measures an mlp only, got --model ",
        model,
        ", expected mlp or mlp:WIDTH");
  }
  check_python(options.peer);
  if (!options.attach.empty()) {
    check_import(options.peer, "gradwire");
  }
}

std::vector<std::string> peer_command(
    const BenchOptions& options, const std::vector<std::string>& hooks) {
  const auto width = model_width(options.model);
  std::vector<std::string> command{
      options.peer,
      "-W",
      "ignore",
      "-c",
      kPeerScript,
      concat(kBenchImageSide * kBenchImageSide, ",", width, ",", width, ",10"),
      concat(options.batch),
      concat(options.bucket_mb)};
  command.insert(command.end(), hooks.begin(), hooks.end());
  return command;
}

}  // namespace gradwire::apps
