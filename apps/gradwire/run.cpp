#include "apps/gradwire/run.h"

#include <iostream>

#include "gradwire/launch/spawn.h"

namespace gradwire::apps {

void print_prefixed(int rank, bool is_error, std::string_view line) {
  auto& out = is_error ? std::cerr : std::cout;
  out << "[rank " << rank << "] " << line << std::endl;
}

int run(const RunOptions& options) {
  launch::SpawnOptions spawn;
  spawn.command = options.command;
  spawn.nproc = options.nproc;
  spawn.on_line = [](int rank, launch::Stream stream, std::string_view line) {
    print_prefixed(rank, stream == launch::Stream::kErr, line);
  };
  const auto result = launch::spawn_ranks(spawn);
  if (result.first_failure) {
    std::cerr << "gradwire: " << to_string(*result.first_failure)
              << (options.nproc > 1 ? "; the other ranks were ended" : "")
              << std::endl;
  }
  return result.exit_code();
}

}  // namespace gradwire::apps
