#pragma once

#include <string>
#include <string_view>

#include "gradwire/launch/spawn.h"

namespace gradwire::apps {

// Writes a rank's line to this process's own output, "[rank 1] " before it.
void print_prefixed(
    const std::string& who, launch::Stream stream, std::string_view line);

}  // namespace gradwire::apps
