// The gradwire command. Its subcommands are the rows of subcommands.cpp.

#include "apps/gradwire/cli/parse.h"

int main(int argc, char** argv) {
  return gradwire::apps::run_command_line({argv + 1, argv + argc});
}
