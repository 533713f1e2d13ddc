#include "gradwire/comm/role.h"

#include "gradwire/base/env.h"
#include "gradwire/base/error.h"
#include "gradwire/base/placement.h"

namespace gradwire {

Role role() {
  const Environment environment = process_environment();
  const auto name = environment("ROLE_NAME");
  const auto rank = integer_variable(environment, "ROLE_RANK");
  const auto world = integer_variable(environment, "ROLE_WORLD_SIZE");
  if (!name && !rank && !world) {
    const Placement place = detect_placement(environment);
    return {.rank = place.rank, .world = place.world};
  }
  if (!name || !rank || !world) {
    fail(
        "comm",
        "expected all of ROLE_NAME, ROLE_RANK and ROLE_WORLD_SIZE, or none");
  }
  return {*name, static_cast<int>(*rank), static_cast<int>(*world)};
}

}  // namespace gradwire
