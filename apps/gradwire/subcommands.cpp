#include "apps/gradwire/cli/subcommand.h"

// The only list of subcommands. A subcommand is a file or folder of this name
// beside this file that defines `Subcommand <name>_command()`.
#define GRADWIRE_SUBCOMMANDS(X) \
  X(run)                        \
  X(train)                      \
  X(bench)                      \
  X(bench_rpc)                  \
  X(hooks)                      \
  X(codecs)                     \
  X(info)                       \
  X(bench_rank)                 \
  X(bench_rpc_rank)             \
  X(markdown)

namespace gradwire::apps {

#define GRADWIRE_DECLARE(name) Subcommand name##_command();
GRADWIRE_SUBCOMMANDS(GRADWIRE_DECLARE)
#undef GRADWIRE_DECLARE

const std::vector<Subcommand>& subcommands() {
#define GRADWIRE_ROW(name) name##_command(),
  static const std::vector<Subcommand> rows{GRADWIRE_SUBCOMMANDS(GRADWIRE_ROW)};
#undef GRADWIRE_ROW
  return rows;
}

}  // namespace gradwire::apps
