#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/comm/group.h"

namespace gradwire::test {

using Body = std::function<void(const Group&)>;

struct RankOptions {
  // Of the group: how long a rank may wait for another one.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  // Processes only: ranks that end abnormally on purpose. The others then go
  // on, and must end well.
  std::vector<int> may_die = {};
  // Of the group, a name of transports(). Threads only, if it is "local".
  std::string transport = "gloo";
};

// Runs `body` on n ranks that are threads of this process, each with a group of
// its own: over real sockets, or with {.transport = "local"} without any, which
// is cheaper and has room for hundreds. A rank that throws is reported as "rank
// k: ..." and drops its group, so that the others fail instead of hanging.
void run_threads(int n, const Body& body, const RankOptions& options = {});

// The same with ranks that are processes: each runs the same test from its
// beginning and gets here once more, in the role of a rank.
// The code around the call runs in every process. For crashes, singletons and
// whatever must not share an address space.
void run_processes(int n, const Body& body, const RankOptions& options = {});

// Runs `body` for either kind of rank, for tests that are worth both.
using Runner = void (*)(int, const Body&, const RankOptions&);

}  // namespace gradwire::test
