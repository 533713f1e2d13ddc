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

// Understands torchrun (and `gradwire run`), Open MPI, MPICH/PMI and Slurm, in
// this order, because mpirun inside a Slurm job sets both kinds of variables.
// MASTER_ADDR and MASTER_PORT count under every launcher. With none of them:
// a world of one. Throws Error when a launcher's variables are incomplete or
// contradict each other.
Placement detect_placement(const Environment& environment);

// The first host of a Slurm node list: "gpu[07-09,12],login1" -> "gpu07".
std::string first_slurm_host(const std::string& node_list);

}  // namespace gradwire
