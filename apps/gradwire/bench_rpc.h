#pragma once

#include <string>
#include <vector>

namespace gradwire::apps {

struct BenchRpcOptions {
  int rounds = 10;
  // Small calls a round; large ones are a tenth of them, hybrid steps a
  // fiftieth.
  int calls = 500;
  // "tcp" or "shm".
  std::string transport = "tcp";
  // A Python with torch, whose own RPC is measured beside; empty: none.
  std::string peer;
  std::string json;
};

// `gradwire bench rpc`: calls between workers and steps of hybrid training, in
// rounds with PyTorch's side by side. Returns 0, or 1 when results differ.
int bench_rpc(const BenchRpcOptions& options);

// One of its workers: does as standard input says, see bench_rpc_rank.cpp.
int bench_rpc_rank(const std::string& transport);

// "tcp" or "shm"; throws Error for anything else.
void check_transport(const std::string& transport);

}  // namespace gradwire::apps
