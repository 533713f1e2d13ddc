#include "gradwire/base/launchers.h"

#include <unistd.h>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

// torchrun's agent may serve the store itself.
void meet_torchrun(const Environment& environment, Placement& place) {
  place.agent_store =
      environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  place.attempt =
      integer_variable(environment, "TORCHELASTIC_RESTART_COUNT").value_or(0);
}

// mpirun starts all ranks of one machine from one daemon, whose address (Open
// MPI) or process (MPICH) no other job shares.
void meet_mpi(const Environment& environment, Placement& place) {
  for (const char* name :
       {"PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI2"}) {
    if (const auto uri = environment(name)) {
      place.job = concat("mpi-", fingerprint(*uri));
      return;
    }
  }
  place.job = concat("mpi-parent-", getppid());
}

void meet_slurm(const Environment& environment, Placement& place) {
  auto nodes = environment("SLURM_STEP_NODELIST");
  if (!nodes) {
    nodes = environment("SLURM_JOB_NODELIST");
  }
  if (!nodes || !place.host.empty()) {
    return;
  }
  place.host = first_slurm_host(*nodes);
  if (place.port == 0) {
    // All tasks of a step compute the same port, two steps different ones.
    const long job = integer_variable(environment, "SLURM_JOB_ID").value_or(0);
    const long step =
        integer_variable(environment, "SLURM_STEP_ID").value_or(0);
    place.port = static_cast<int>(20000 + (job * 7 + step) % 10000);
  }
}

// srun with a PMI plugin sets MPICH's variables too, but only Slurm knows where
// to meet.
bool started_by_mpich(const Environment& environment) {
  return !environment("SLURM_STEP_NUM_TASKS") &&
         (environment("PMI_RANK") || environment("PMI_SIZE"));
}

// A batch script without a number of tasks is not a task of anything.
bool started_by_slurm(const Environment& environment) {
  return environment("SLURM_PROCID") &&
         (environment("SLURM_STEP_NUM_TASKS") || environment("SLURM_NTASKS"));
}

}  // namespace

// The only list of launchers. mpirun inside a Slurm job sets both kinds of
// variables, so Slurm comes last.
const std::vector<Launcher>& launchers() {
  static const std::vector<Launcher> rows{
      {.name = "torchrun",
       .rank = {"RANK"},
       .world = {"WORLD_SIZE"},
       .local_rank = {"LOCAL_RANK"},
       .local_world = {"LOCAL_WORLD_SIZE"},
       .meets = "torchrun and `gradwire run` set `MASTER_ADDR`",
       .meet = meet_torchrun},
      {.name = "Open MPI",
       .rank = {"OMPI_COMM_WORLD_RANK"},
       .world = {"OMPI_COMM_WORLD_SIZE"},
       .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
       .local_world = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
       .meets = "a file of the job, on one machine only",
       .meet = meet_mpi},
      {.name = "MPICH",
       .rank = {"PMI_RANK"},
       .world = {"PMI_SIZE"},
       .local_rank = {"MPI_LOCALRANKID"},
       .local_world = {"MPI_LOCALNRANKS"},
       .meets = "a file of the job, on one machine only",
       .meet = meet_mpi,
       .started = started_by_mpich},
      {.name = "Slurm",
       .rank = {"SLURM_PROCID"},
       .world = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
       .local_rank = {"SLURM_LOCALID"},
       .local_world = {"SLURM_TASKS_PER_NODE"},
       .meets = "the step's first node",
       .meet = meet_slurm,
       .started = started_by_slurm}};
  return rows;
}

std::string first_slurm_host(const std::string& node_list) {
  const std::size_t bracket = node_list.find('[');
  const std::size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) {
    return node_list.substr(0, comma);
  }
  const std::size_t end = node_list.find_first_of(",-]", bracket);
  const std::size_t close = node_list.find(']', bracket);
  if (close == std::string::npos) {
    fail("launch", "cannot read the Slurm node list '", node_list, "'");
  }
  const std::size_t tail_end = node_list.find(',', close);
  return node_list.substr(0, bracket) +
         node_list.substr(bracket + 1, end - bracket - 1) +
         node_list.substr(close + 1, tail_end - close - 1);
}

}  // namespace gradwire
