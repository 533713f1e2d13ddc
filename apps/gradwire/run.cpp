#include <algorithm>
#include <charconv>
#include <iostream>
#include <map>
#include <memory>

#include "apps/gradwire/cli/subcommand.h"
#include "apps/gradwire/shared/prefixed.h"
#include "gradwire/base/error.h"
#include "gradwire/comm/role.h"
#include "gradwire/launch/spawn.h"

namespace gradwire::apps {

namespace {

struct RunOptions {
  int nproc = 2;
  // "trainer=2": so many ranks of that role, one role after another; instead
  // of nproc.
  std::vector<std::string> roles;
  std::vector<std::string> command;
};

// One a rank. Throws Error for something else than "name=count".
std::vector<Role> parse_roles(const std::vector<std::string>& texts) {
  std::vector<Role> roles;
  for (const auto& text : texts) {
    const auto equals = text.find('=');
    const std::string name = text.substr(0, equals);
    int count = 0;
    if (equals != std::string::npos) {
      const char* end = text.data() + text.size();
      const auto parsed = std::from_chars(text.data() + equals + 1, end, count);
      count = parsed.ptr == end ? count : 0;
    }
    const bool twice =
        std::ranges::find(roles, name, &Role::name) != roles.end();
    if (name.empty() || twice || count < 1 || count > launch::kMostLocalRanks) {
      fail(
          "app",
          "--role is '",
          text,
          "', expected a new name and how many ranks, such as trainer=2");
    }
    for (int rank = 0; rank < count; ++rank) {
      roles.push_back({name, rank, count});
    }
  }
  return roles;
}

std::map<std::string, std::string> environment_of(const Role& role) {
  return {
      {"ROLE_NAME", role.name},
      {"ROLE_RANK", concat(role.rank)},
      {"ROLE_WORLD_SIZE", concat(role.world)}};
}

int run(const RunOptions& options) {
  const auto roles = parse_roles(options.roles);
  launch::SpawnOptions spawn;
  spawn.command = options.command;
  spawn.nproc = options.nproc;
  if (!roles.empty()) {
    spawn.nproc = static_cast<int>(roles.size());
    spawn.environment_of = [&](int rank) {
      return environment_of(roles[static_cast<std::size_t>(rank)]);
    };
  }
  spawn.on_line = [&](int rank, launch::Stream stream, std::string_view line) {
    std::string who = concat("rank ", rank);
    if (!roles.empty()) {
      const Role& role = roles[static_cast<std::size_t>(rank)];
      who = concat(role.name, role.rank);
    }
    print_prefixed(who, stream, line);
  };
  const auto result = launch::spawn_ranks(spawn);
  if (result.first_failure) {
    std::cerr << "gradwire: " << to_string(*result.first_failure)
              << (spawn.nproc > 1 ? "; the other ranks were ended" : "")
              << std::endl;
  }
  return result.exit_code();
}

}  // namespace

Subcommand run_command() {
  return {
      "run", "start local ranks of any program", [](Flags& flags) -> Action {
        const auto options = std::make_shared<RunOptions>();
        flags.add("--nproc,-n", options->nproc, "number of ranks");
        flags
            .add(
                "--role",
                options->roles,
                "ranks of a role, such as trainer=2; one option for each role")
            .excludes = "--nproc";
        flags.add("command", options->command, "program and its arguments");
        return [options](const auto&) { return run(*options); };
      }};
}

}  // namespace gradwire::apps
