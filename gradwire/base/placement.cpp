#include "gradwire/base/placement.h"

#include <cstdlib>
#include <optional>

#include "gradwire/base/error.h"
#include "gradwire/base/launchers.h"

namespace gradwire {
namespace {

constexpr int kTorchDefaultPort = 29500;

// The first of the variables that is set, or the last one.
const std::string& variable_of(
    const Environment& environment, const Launcher::Variables& variables) {
  for (const auto& name : variables) {
    if (environment(name)) {
      return name;
    }
  }
  return variables.back();
}

bool started_by(const Launcher& launcher, const Environment& environment) {
  if (launcher.started != nullptr) {
    return launcher.started(environment);
  }
  return environment(variable_of(environment, launcher.rank)) ||
         environment(variable_of(environment, launcher.world));
}

int required(
    const Environment& environment,
    const std::string& launcher,
    const std::string& variable,
    const std::string& other) {
  const auto value = integer_variable(environment, variable);
  if (!value) {
    fail("launch", launcher, " set ", other, " but not ", variable);
  }
  return static_cast<int>(*value);
}

Placement read_ranks(const Launcher& launcher, const Environment& environment) {
  const std::string& rank = variable_of(environment, launcher.rank);
  const std::string& world = variable_of(environment, launcher.world);
  Placement place;
  place.launcher = launcher.name;
  place.rank = required(environment, launcher.name, rank, world);
  place.world = required(environment, launcher.name, world, rank);
  if (place.world < 1 || place.rank < 0 || place.rank >= place.world) {
    fail(
        "launch",
        rank,
        " is ",
        place.rank,
        " and ",
        world,
        " is ",
        place.world,
        ", expected 0 <= rank < world");
  }
  const auto local_rank = integer_variable(
      environment, variable_of(environment, launcher.local_rank));
  place.local_rank = static_cast<int>(local_rank.value_or(place.rank));
  // Slurm writes "2(x3)": the leading number is this node's share.
  const auto local_world =
      environment(variable_of(environment, launcher.local_world));
  place.local_world = local_world ? std::atoi(local_world->c_str()) : 0;
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

}  // namespace

Placement detect_placement(const Environment& environment) {
  for (const Launcher& launcher : launchers()) {
    if (started_by(launcher, environment)) {
      Placement place = read_ranks(launcher, environment);
      read_master(environment, place);
      launcher.meet(environment, place);
      return place;
    }
  }
  return {};
}

}  // namespace gradwire
