#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/gradwire/cli/flags.h"

namespace gradwire::apps {

// What a subcommand does once its options have values. The argument is the
// command that starts this program again with the same arguments. Returns the
// exit code.
using Action = std::function<int(const std::vector<std::string>& again)>;

// One row of the registry: what help, docs and the parser know of a subcommand.
struct Subcommand {
  // "bench", or "bench rpc" for what stands behind another one.
  std::string name;
  std::string summary;
  // Declares the options and returns what runs. Called again for every help
  // and parse, so the action owns what the flags are read into.
  Action (*declare)(Flags& flags);
  // Started by gradwire itself, or by the project's tools: not in the help.
  bool internal = false;
};

// All subcommands in the order of subcommands.cpp. One that stands behind
// another comes after it.
const std::vector<Subcommand>& subcommands();

}  // namespace gradwire::apps
