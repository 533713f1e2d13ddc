#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace gradwire {

// What became of one parameter's gradient in the last step.
struct ParameterReport {
  std::string name;
  std::int64_t elems = 0;
  // How many numbers were sent for it.
  std::int64_t sent_elems = 0;
  // Of what was sent; 0: all of it was.
  std::int64_t rank = 0;
  // Length of this rank's residual, as it was last measured; NaN: never.
  double residual_norm = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace gradwire
