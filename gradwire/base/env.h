#pragma once

#include <functional>
#include <optional>
#include <string>

namespace gradwire {

// Looks a variable up; nullopt when it is not set or empty. Code that reads
// the environment takes one of these, so that tests need not touch the real
// one.
using Environment =
    std::function<std::optional<std::string>(const std::string& name)>;

// The environment of this process.
Environment process_environment();

// The variable as an integer, nullopt when it is not set. Throws Error naming
// the variable when its value is not an integer.
std::optional<long> integer_variable(
    const Environment& environment, const std::string& name);

}  // namespace gradwire
