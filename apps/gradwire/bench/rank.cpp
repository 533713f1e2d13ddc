#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/gradwire/bench/bench.h"
#include "apps/gradwire/cli/subcommand.h"
#include "apps/gradwire/shared/models.h"
#include "apps/gradwire/shared/report_json.h"
#include "gradwire/base/error.h"
#include "gradwire/comm/init.h"
#include "gradwire/ddp/ddp.h"
#include "gradwire/hook/registry.h"

namespace gradwire::apps {
namespace {

using Clock = std::chrono::steady_clock;
using Net = DistributedDataParallel<std::shared_ptr<Classifier>>;
using nlohmann::json;

constexpr std::uint64_t kWeightSeed = 1;
constexpr std::uint64_t kInputSeed = 1000;

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

struct RankOptions {
  std::vector<std::string> hooks;
  std::string model;
  std::int64_t batch = 8;
  double bucket_mb = 25;
};

class BenchRank {
 public:
  // `options.hooks` are canonical specs, one of them noop.
  explicit BenchRank(const RankOptions& options) : group_(init()) {
    const ImageShape shape{kBenchImageSide, kBenchImageSide, 10};
    for (const auto& spec : options.hooks) {
      if (noop_ == kNone && spec == "noop") {
        noop_ = nets_.size();
      }
      torch::manual_seed(kWeightSeed);
      nets_.emplace_back(
          make_model(options.model, shape),
          group_,
          DistributedDataParallelOptions{
              .hook = spec,
              .bucket_cap_mb = options.bucket_mb,
              .gradient_as_bucket_view = true});
    }
    if (noop_ == kNone) {
      fail("app", "bench-rank got no noop hook, expected one");
    }
    torch::manual_seed(kInputSeed + static_cast<std::uint64_t>(group_.rank()));
    input_ = torch::randn({options.batch, 1, kBenchImageSide, kBenchImageSide});
  }

  // The result of a step is compared before any other step of this DDP, while
  // a hook that carries errors over has none yet.
  json verify(std::size_t index) {
    if (!exact_.defined()) {
      step(nets_.at(noop_));
      exact_ = gradients(nets_[noop_]).to(torch::kDouble);
      group_.all_reduce(exact_).wait();
      exact_ /= group_.size();
    }
    if (index != noop_) {
      step(nets_.at(index));
    }
    const auto result = gradients(nets_.at(index));
    const double scale = exact_.norm().item<double>();
    const double off =
        (result.to(torch::kDouble) - exact_).norm().item<double>();
    return {
        {"relative_error", scale > 0 ? off / scale : off},
        {"parameters", result.numel()},
        {"fingerprint", fingerprint_of(result)}};
  }

  static std::string fingerprint_of(const at::Tensor& flat) {
    return concat(fingerprint(
        {static_cast<const char*>(flat.data_ptr()), flat.nbytes()}));
  }

  json run(std::size_t index, int steps) {
    Net& net = nets_.at(index);
    std::vector<double> step_ms;
    std::vector<double> exposed_ms;
    std::vector<double> first_bucket_ms;
    for (int i = 0; i < steps; ++i) {
      const auto [start, end] = step(net);
      step_ms.push_back(ms_between(start, end));
      const Step last = net->stats().last;
      exposed_ms.push_back(times_of(last).exposed_ms);
      if (index == noop_) {
        // No hook can begin to send before.
        first_bucket_ms.push_back(
            ms_between(start, last.buckets.front().ready));
      }
    }
    const json stats = to_json(net->stats());
    return {
        {"step_ms", step_ms},
        {"exposed_ms", exposed_ms},
        {"first_bucket_ms", first_bucket_ms},
        {"fingerprint", fingerprint_of(gradients(net))},
        {"sent", stats.at("last").at("sent")},
        {"compression_ratio", stats.at("compression_ratio")},
        {"residual_norm", stats.at("residual_norm")},
        {"by_parameter", stats.at("by_parameter")}};
  }

 private:
  std::pair<Clock::time_point, Clock::time_point> step(Net& net) {
    net->zero_grad();
    group_.barrier().wait();
    const auto start = Clock::now();
    net->forward(input_).sum().backward();
    return {start, Clock::now()};
  }

  static at::Tensor gradients(const Net& net) {
    std::vector<at::Tensor> flat;
    for (const auto& parameter : net->parameters()) {
      flat.push_back(parameter.grad().detach().reshape({-1}));
    }
    return torch::cat(flat);
  }

  Group group_;
  std::vector<Net> nets_;
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t noop_ = kNone;
  at::Tensor input_;
  at::Tensor exact_;
};

json obey(BenchRank& rank, const std::string& command) {
  std::istringstream words(command);
  std::string verb;
  std::size_t index = 0;
  int steps = 0;
  words >> verb >> index;
  if (verb == "verify" && words) {
    return rank.verify(index);
  }
  if (verb == "run" && words >> steps) {
    return rank.run(index, steps);
  }
  fail("app", "bench-rank got '", command, "', expected verify or run");
}

// Holds a DDP for each hook and does as standard input says, a line a command,
// until it ends. Answers are lines of JSON behind kBenchAnswer.
//   verify I      one step of hook I on fresh state, compared with the exact
//                 average
//   run I STEPS   timed steps of hook I
int bench_rank(const RankOptions& options) {
  at::set_num_threads(1);
  BenchRank rank(options);
  for (std::string command; std::getline(std::cin, command);) {
    std::cout << kBenchAnswer << obey(rank, command).dump() << std::endl;
  }
  return 0;
}

}  // namespace

Subcommand bench_rank_command() {
  return {
      "bench-rank",
      "one rank of bench",
      [](Flags& flags) -> Action {
        const auto options = std::make_shared<RankOptions>();
        flags.add("--hook", options->hooks, "a hook to make a DDP for");
        flags.add("--model", options->model, "as of `gradwire bench`");
        flags.add("--batch", options->batch, "as of `gradwire bench`");
        flags.add("--bucket-mb", options->bucket_mb, "as of `gradwire bench`");
        return [options](const auto&) { return bench_rank(*options); };
      },
      /*internal=*/true};
}

}  // namespace gradwire::apps
