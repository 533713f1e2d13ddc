#include "gradwire/base/placement.h"

#include <unistd.h>

#include <optional>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

constexpr int kTorchDefaultPort = 29500;

// The variables one launcher uses for the same four numbers.
struct Dialect {
  const char* launcher;
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_world;
};

constexpr Dialect kTorchrun{
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Dialect kOpenMpi{
    "Open MPI",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Dialect kMpich{
    "MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Dialect kSlurmStep{
    "Slurm",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_TASKS_PER_NODE"};
constexpr Dialect kSlurm{
    "Slurm",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_TASKS_PER_NODE"};

int required(const Environment& environment, const Dialect& d, const char* v) {
  const auto value = integer_variable(environment, v);
  if (!value) {
    fail(
        "launch",
        d.launcher,
        " set one of ",
        d.rank,
        " and ",
        d.world,
        " but not the other: ",
        v,
        " is missing");
  }
  return static_cast<int>(*value);
}

std::optional<Placement> read(const Environment& environment, Dialect d) {
  if (!environment(d.rank) && !environment(d.world)) {
    return std::nullopt;
  }
  Placement place;
  place.launcher = d.launcher;
  place.rank = required(environment, d, d.rank);
  place.world = required(environment, d, d.world);
  if (place.world < 1 || place.rank < 0 || place.rank >= place.world) {
    fail(
        "launch",
        d.rank,
        " is ",
        place.rank,
        " and ",
        d.world,
        " is ",
        place.world,
        ", expected 0 <= rank < world");
  }
  const auto local_rank = integer_variable(environment, d.local_rank);
  place.local_rank = static_cast<int>(local_rank.value_or(place.rank));
  // Slurm writes "2(x3)": the leading number is this node's share.
  if (const auto text = environment(d.local_world)) {
    place.local_world = std::atoi(text->c_str());
  } else {
    place.local_world = 0;
  }
  return place;
}

void read_master(const Environment& environment, Placement& place) {
  if (const auto host = environment("MASTER_ADDR")) {
    place.host = *host;
  }
  const auto port = integer_variable(environment, "MASTER_PORT");
  if (port && (*port < 0 || *port > 65535)) {
    fail("launch", "MASTER_PORT is ", *port, ", expected 0 to 65535");
  }
  if (port) {
    place.port = static_cast<int>(*port);
  }
  if (!place.host.empty() && place.port == 0) {
    place.port = kTorchDefaultPort;
  }
}

void read_torchrun(const Environment& environment, Placement& place) {
  place.agent_store =
      environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  place.attempt =
      integer_variable(environment, "TORCHELASTIC_RESTART_COUNT").value_or(0);
}

void read_slurm(const Environment& environment, Placement& place) {
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

// mpirun starts all ranks of one machine from one daemon, whose address (Open
// MPI) or process (MPICH) no other job shares.
std::string local_job(const Environment& environment) {
  for (const char* name :
       {"PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI2"}) {
    if (const auto uri = environment(name)) {
      return concat("mpi-", fingerprint(*uri));
    }
  }
  return concat("mpi-parent-", getppid());
}

}  // namespace

Placement detect_placement(const Environment& environment) {
  for (const Dialect& dialect : {kTorchrun, kOpenMpi, kMpich}) {
    // srun with a PMI plugin speaks both; only Slurm knows where to meet.
    const bool pmi_of_srun = dialect.launcher == kMpich.launcher &&
                             environment("SLURM_STEP_NUM_TASKS");
    if (pmi_of_srun) {
      continue;
    }
    if (auto place = read(environment, dialect)) {
      read_master(environment, *place);
      read_torchrun(environment, *place);
      if (dialect.launcher != kTorchrun.launcher) {
        place->job = local_job(environment);
      }
      return *place;
    }
  }
  // A batch script without a task count is not a task of anything.
  const bool step = environment("SLURM_STEP_NUM_TASKS").has_value();
  if (environment("SLURM_PROCID") && (step || environment("SLURM_NTASKS"))) {
    auto place = *read(environment, step ? kSlurmStep : kSlurm);
    read_master(environment, place);
    read_slurm(environment, place);
    return place;
  }
  return {};
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
