#pragma once

#include <string>
#include <vector>

#include "apps/gradwire/bench.h"

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

// The same, and unless `model` is one that peer.py can build.
void check_peer(const std::string& python, const std::string& model);

// peer.py by options.peer with these hooks (names of PeerHook).
std::vector<std::string> peer_command(
    const BenchOptions& options, const std::vector<std::string>& torch_names);

}  // namespace gradwire::apps
