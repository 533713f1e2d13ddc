#pragma once

#include <cstdlib>
#include <functional>
#include <utility>

#include "gradwire/rpc/rpc.h"
#include "tests/support/ranks.h"

namespace gradwire::test {

// Registers functions that several tests use once a process.
template <void (*Register)()>
void once() {
  static bool done = false;
  if (!std::exchange(done, true)) {
    Register();
  }
}

// Worker k is called "workerk".
inline std::string worker_name(int rank) {
  return concat("worker", rank);
}

struct WorkerOptions {
  rpc::Options rpc = {};
  RankOptions ranks = {};
};

// Tests run over TCP, or over what this variable says.
inline rpc::Transport test_transport() {
  const char* name = std::getenv("GRADWIRE_TEST_TRANSPORT");
  return name != nullptr && std::string(name) == "shm"
             ? rpc::Transport::kSharedMemory
             : rpc::Transport::kTcp;
}

inline void init_worker(const Group& group, rpc::Options options = {}) {
  options.transport = test_transport();
  rpc::init(worker_name(group.rank()), group, options);
}

// Runs `body` on n processes that are workers; how they leave is up to it.
inline void run_joined(
    int n,
    const std::function<void(const Group&)>& body,
    const WorkerOptions& options = {}) {
  run_processes(
      n,
      [&](const Group& group) {
        init_worker(group, options.rpc);
        body(group);
      },
      options.ranks);
}

// The same, and shuts them down afterwards.
inline void run_workers(
    int n,
    const std::function<void(const Group&)>& body,
    const WorkerOptions& options = {}) {
  run_joined(
      n,
      [&](const Group& group) {
        body(group);
        rpc::shutdown();
      },
      options);
}

}  // namespace gradwire::test
