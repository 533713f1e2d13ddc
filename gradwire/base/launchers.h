#pragma once

#include <string>
#include <vector>

#include "gradwire/base/env.h"
#include "gradwire/base/placement.h"

namespace gradwire {

// One row of the table of launchers: the variables it sets for the processes it
// starts.
struct Launcher {
  // Of several variables the first that is set counts.
  using Variables = std::vector<std::string>;

  std::string name;
  Variables rank;
  Variables world;
  // Those two may be missing.
  Variables local_rank;
  Variables local_world;
  // Where ranks meet when MASTER_ADDR is not set, for the docs.
  std::string meets;
  // Fills in where ranks meet: host and port, or job, or agent_store. Called
  // after MASTER_ADDR and MASTER_PORT were read, which come first.
  void (*meet)(const Environment&, Placement&);
  // Whether the launcher started this process. Null: its variable of the rank
  // or of the world is set.
  bool (*started)(const Environment&) = nullptr;
};

// All launchers, in the order in which they are tried.
const std::vector<Launcher>& launchers();

// The first host of a Slurm node list: "gpu[07-09,12],login1" -> "gpu07".
std::string first_slurm_host(const std::string& node_list);

}  // namespace gradwire
