#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "gradwire/comm/group.h"

namespace gradwire {

// How to meet the other ranks. What is not said here is taken from the
// environment of torchrun, `gradwire run`, Open MPI, MPICH or Slurm; with none
// of them the world has one rank.
struct InitOptions {
  std::optional<int> rank = {};
  std::optional<int> world = {};
  // Where rank 0 serves the store, as every rank can reach it.
  std::string host = {};
  std::optional<int> port = {};
  // Meet through this file instead, on a file system all ranks share. The path
  // must be new for every run.
  std::string file = {};
  // How long any wait on the group may take. Default: GRADWIRE_TIMEOUT_S
  // seconds, or ten minutes.
  std::optional<std::chrono::milliseconds> timeout = {};
  // Network interface to use ("eth0"). Default: GLOO_SOCKET_IFNAME, or the one
  // that leads to `host`.
  std::string interface = {};
  // How tensors move: a name of transports(). Default: GRADWIRE_TRANSPORT, or
  // "gloo".
  std::string transport = {};
};

// Meets the other ranks and connects to them. Collective over the job. Throws
// Error for options or an environment that make no sense or differ between
// ranks, CommError when a rank does not come in time.
Group init(const InitOptions& options = {});

}  // namespace gradwire
