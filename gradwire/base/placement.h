#pragma once

#include <string>

#include "gradwire/base/env.h"

namespace gradwire {

// What a launcher told this process about itself. `host` is empty when the
// launcher gave no address to meet at; `job` is then a key that all ranks of
// this job on this machine share and no other job does.
struct Placement {
  std::string launcher = "none";
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  // 0: the launcher did not say.
  int local_world = 1;
  std::string host;
  int port = 0;
  std::string job;
  // torchrun's agent serves the store itself, once per restart attempt.
  bool agent_store = false;
  long attempt = 0;
};

// Reads the variables of the first row of launchers() that started this
// process. MASTER_ADDR and MASTER_PORT count under every launcher. Without a
// launcher: a world of one. Throws Error when a launcher's variables are
// incomplete or contradict each other.
Placement detect_placement(const Environment& environment);

}  // namespace gradwire
