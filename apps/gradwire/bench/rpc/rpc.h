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
  // A Python with torch, whose own RPC is measured in the same rounds; empty:
  // none.
  std::string peer;
  std::string json;
};

// "tcp" or "shm"; throws Error for anything else.
void check_transport(const std::string& transport);

}  // namespace gradwire::apps
