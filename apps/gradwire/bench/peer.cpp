#include "apps/gradwire/bench/peer.h"

#include <unistd.h>

#include <map>

#include "apps/gradwire/bench/network.h"
#include "apps/gradwire/shared/models.h"
#include "gradwire/base/error.h"
#include "gradwire/base/spec.h"
#include "gradwire/ddp/comm_hook_type.h"
#include "peer_script.h"

namespace gradwire::apps {

namespace {

// Why PyTorch's own hooks of a kind do not run on the CPU, by our name.
const std::map<std::string, const char*> kRefusals{
    {"bf16", "is refused by DDP without CUDA and NCCL"},
    {"int8", "fails on Gloo"},
    {"powersgd", "aborts on Gloo"},
    {"batched_powersgd", "aborts on Gloo"}};

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

PeerHook peer_hook(const std::string& spec) {
  const std::string name = parse_spec(spec).name;
  if (name == "none") {
    return {name, ""};
  }
  if (name == "allreduce" || name == "noop") {
    return {};
  }
  for (const auto& row : comm_hook_names()) {
    if (parse_spec(row.spec).name != name) {
      continue;
    }
    const auto refusal = kRefusals.find(name);
    return refusal == kRefusals.end()
               ? PeerHook{row.name, ""}
               : PeerHook{"", concat(row.name, " ", refusal->second)};
  }
  return {"", "PyTorch has no such hook"};
}

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
