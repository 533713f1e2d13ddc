#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "gradwire/base/fd.h"

namespace gradwire::launch {

// A pipe whose both ends close on exec. Throws Error.
struct Pipe {
  Pipe();
  Fd read;
  Fd write;
};

struct ChildOptions {
  std::vector<std::string> command;
  // The whole environment of the child.
  std::map<std::string, std::string> environment;
  // The descriptor the child reads as its input; -1: it has none.
  int in = -1;
  // Descriptors the child gets as its output; -1: inherits this process's.
  int out = -1;
  int err = -1;
};

// Starts a process in its own process group. The kernel kills it when this
// process dies. Throws Error when the program cannot be run.
pid_t start_child(const ChildOptions& options);

// This process's environment as a map.
std::map<std::string, std::string> inherited_environment();

}  // namespace gradwire::launch
