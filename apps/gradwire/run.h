#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradwire::apps {

struct RunOptions {
  int nproc = 2;
  // "trainer=2": so many ranks of that role, one role after another; instead
  // of nproc.
  std::vector<std::string> roles;
  std::vector<std::string> command;
};

// `gradwire run`: local ranks of any program, C++ or Python.
int run(const RunOptions& options);

// Writes a rank's line to this process's own output, "[rank 1] " before it.
void print_prefixed(int rank, bool is_error, std::string_view line);

}  // namespace gradwire::apps
