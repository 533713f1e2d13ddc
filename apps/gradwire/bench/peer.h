#pragma once

#include <string>
#include <vector>

#include "apps/gradwire/bench/bench.h"

namespace gradwire::apps {

// What PyTorch's own DDP can put beside one of our hooks.
struct PeerHook {
  // "none", a name of DDPCommHookType, or empty where there is nothing.
  std::string torch_name;
  // Where there is nothing: the reason, or empty when none is due.
  std::string why_not;
};

PeerHook peer_hook(const std::string& spec);

// Throws Error unless `python` can import torch.
void check_python(const std::string& python);

// The same, and unless peer.py can build the model and attach what it should.
void check_peer(const BenchOptions& options);

// What peer.py attaches, before the spec.
inline constexpr const char* kAttach = "attach ";

// peer.py by options.peer with these hooks: names of PeerHook, or specs behind
// kAttach.
std::vector<std::string> peer_command(
    const BenchOptions& options, const std::vector<std::string>& hooks);

}  // namespace gradwire::apps
