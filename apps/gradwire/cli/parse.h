#pragma once

#include <string>
#include <vector>

namespace gradwire::apps {

// Runs what the arguments (without the program's name) ask for. Returns the
// exit code: that of the subcommand, 2 for a mistake in the arguments, 1 for
// any other failure; errors are one line on standard error.
int run_command_line(const std::vector<std::string>& arguments);

}  // namespace gradwire::apps
