#pragma once

#include <string>
#include <vector>

#include "gradwire/optim/zero.h"

namespace gradwire::apps {

std::vector<std::string> optimizer_names();

// What makes the optimizer of this name, of whole parameters or of slices.
// Momentum is that of SGD. Throws Error that lists the names for any other.
SliceOptimizer find_optimizer(
    const std::string& name, double lr, double momentum);

}  // namespace gradwire::apps
