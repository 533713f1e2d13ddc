#pragma once

#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <future>
#include <thread>

#include "tests/rpc/workers.h"

// What tests of faults and of leaving call on each other.

namespace gradwire::test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline at::Tensor& weight() {
  static at::Tensor tensor = torch::ones({2, 2}).requires_grad_();
  return tensor;
}

// Set by the function of that name.
inline std::promise<void> over;

inline void register_faults() {
  rpc::register_function("over", [] { over.set_value(); });
  rpc::register_function("pid", [] { return std::int64_t{getpid()}; });
  rpc::register_function("die", [] { kill(getpid(), SIGKILL); });
  rpc::register_function("sleep_ms", [](int ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    return ms;
  });
  rpc::register_function(
      "times_weight", [](const at::Tensor& x) { return x.matmul(weight()); });
  // Dies as soon as its gradient is asked for.
  rpc::register_function("times_weight_and_die", [](const at::Tensor& x) {
    auto y = x.matmul(weight());
    y.register_hook([](const at::Tensor&) { kill(getpid(), SIGKILL); });
    return y;
  });
  rpc::register_function(
      "times_weight_at", [](const std::string& worker, const at::Tensor& x) {
        return rpc::call<at::Tensor>(worker, "times_weight", x);
      });
}

inline WorkerOptions with_death_of(int rank) {
  WorkerOptions options;
  options.rpc.timeout = 20s;
  options.rpc.shutdown_timeout = 2s;
  options.ranks.may_die = {rank};
  return options;
}

inline WorkerOptions with_shutdown_timeout(std::chrono::milliseconds timeout) {
  WorkerOptions options;
  options.rpc.shutdown_timeout = timeout;
  return options;
}

}  // namespace gradwire::test
