#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/gradwire/bench/bench.h"
#include "apps/gradwire/bench/rpc/hybrid_model.h"
#include "apps/gradwire/bench/rpc/rpc.h"
#include "apps/gradwire/cli/subcommand.h"
#include "gradwire/base/error.h"
#include "gradwire/comm/init.h"
#include "gradwire/rpc/rpc.h"

namespace gradwire::apps {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr std::int64_t kLargeElems = 4 << 20;

void register_functions() {
  rpc::register_function("small", [](const at::Tensor& x) { return x + 1; });
  rpc::register_function(
      "first_of", [](const at::Tensor& x) { return x.slice(0, 0, 1).clone(); });
  register_hybrid();
}

std::string worker(int rank) {
  return concat("worker", rank);
}

// The last worker: calls the others and takes the time.
class Master {
 public:
  Master()
      : em_(worker(kRemoteRank)),
        net_(worker(kRemoteRank)),
        small_(torch::ones(8)),
        large_(torch::ones(kLargeElems)) {
    std::vector<rpc::Reply<rpc::Remote<Trainer>>> making;
    for (int i = 0; i < kTrainers; ++i) {
      making.push_back(
          rpc::Remote<Trainer>::create_async(worker(i), em_, net_));
    }
    for (const auto& each : making) {
      trainers_.push_back(each.wait());
    }
  }

  json measure(const std::string& verb, int count) {
    std::vector<double> times;
    at::Tensor result;
    for (int i = 0; i < count; ++i) {
      const auto start = Clock::now();
      result = act(verb);
      times.push_back(
          std::chrono::duration<double, std::milli>(Clock::now() - start)
              .count());
    }
    return {{"ms", times}, {"sum", result.sum().item<double>()}};
  }

 private:
  at::Tensor act(const std::string& verb) {
    if (verb == "small") {
      return rpc::call<at::Tensor>(worker(kRemoteRank), "small", small_);
    }
    if (verb == "large") {
      return rpc::call<at::Tensor>(worker(kRemoteRank), "first_of", large_);
    }
    if (verb == "hybrid") {
      return hybrid_step();
    }
    fail("app", "bench-rpc-rank got '", verb, "'");
  }

  // The first trainer's own gradient.
  at::Tensor hybrid_step() {
    std::vector<rpc::Reply<std::vector<at::Tensor>>> replies;
    for (std::size_t i = 0; i < trainers_.size(); ++i) {
      const auto& batch = examples_[i];
      replies.push_back(trainers_[i].invoke_async<&Trainer::step>(
          batch.dense, batch.sparse, batch.values));
    }
    at::Tensor first;
    for (const auto& reply : replies) {
      const auto gradients = reply.wait();
      first = first.defined() ? first : gradients.at(0);
    }
    return first;
  }

  rpc::RemoteModule<RemoteEm> em_;
  rpc::RemoteModule<RemoteNet> net_;
  std::vector<rpc::Remote<Trainer>> trainers_;
  std::vector<Examples> examples_ = examples_by_trainer();
  at::Tensor small_;
  at::Tensor large_;
};

}  // namespace

void check_transport(const std::string& transport) {
  if (transport != "tcp" && transport != "shm") {
    fail("app", "--transport is '", transport, "', expected tcp or shm");
  }
}

namespace {

// Commands: VERB COUNT, where VERB is small, large or hybrid. All workers
// answer, only the last one with times.
int bench_rpc_rank(const std::string& transport) {
  check_transport(transport);
  at::set_num_threads(1);
  register_functions();
  const Group group = init();
  rpc::Options options;
  // Workers are stopped while the other side is measured.
  options.lease = std::chrono::hours(24);
  options.transport =
      transport == "shm" ? rpc::Transport::kSharedMemory : rpc::Transport::kTcp;
  rpc::init(worker(group.rank()), group, options);
  trainers() = group.subgroup({0, 1, 2, 3});
  group.barrier().wait();
  {
    std::optional<Master> master;
    if (group.rank() == group.size() - 1) {
      master.emplace();
    }
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string verb;
      int count = 0;
      words >> verb >> count;
      const json answer =
          master ? master->measure(verb, count) : json::object();
      std::cout << kBenchAnswer << answer.dump() << std::endl;
    }
  }
  rpc::shutdown();
  return 0;
}

}  // namespace

Subcommand bench_rpc_rank_command() {
  return {
      "bench-rpc-rank",
      "one worker of bench rpc",
      [](Flags& flags) -> Action {
        const auto transport = std::make_shared<std::string>("tcp");
        flags.add("--transport", *transport, "as of `gradwire bench rpc`");
        return [transport](const auto&) { return bench_rpc_rank(*transport); };
      },
      /*internal=*/true};
}

}  // namespace gradwire::apps
