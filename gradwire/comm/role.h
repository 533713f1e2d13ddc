#pragma once

#include <string>

namespace gradwire {

// The part this process plays in a job whose processes differ, such as
// trainers and workers that hold embeddings.
struct Role {
  std::string name = "worker";
  // Among the processes of this role.
  int rank = 0;
  int world = 1;
};

// What `gradwire run --role` or torchrun said in ROLE_NAME, ROLE_RANK and
// ROLE_WORLD_SIZE. Where nothing is said all are workers, with the ranks of the
// job. Throws Error when only a part is said.
Role role();

}  // namespace gradwire
