#pragma once

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

// Runs `body` on n processes that are workers, and shuts them down afterwards.
inline void run_workers(
    int n,
    const std::function<void(const Group&)>& body,
    const WorkerOptions& options = {}) {
  run_processes(
      n,
      [&](const Group& group) {
        rpc::init(worker_name(group.rank()), group, options.rpc);
        body(group);
        rpc::shutdown();
      },
      options.ranks);
}

}  // namespace gradwire::test
