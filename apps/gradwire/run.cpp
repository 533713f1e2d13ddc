#include "apps/gradwire/run.h"

#include <algorithm>
#include <charconv>
#include <iostream>

#include "gradwire/base/error.h"
#include "gradwire/comm/role.h"
#include "gradwire/launch/spawn.h"

namespace gradwire::apps {

namespace {

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

}  // namespace

void print_prefixed(int rank, bool is_error, std::string_view line) {
  auto& out = is_error ? std::cerr : std::cout;
  out << "[rank " << rank << "] " << line << std::endl;
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
    const bool is_error = stream == launch::Stream::kErr;
    if (roles.empty()) {
      print_prefixed(rank, is_error, line);
    } else {
      const Role& role = roles[static_cast<std::size_t>(rank)];
      (is_error ? std::cerr : std::cout)
          << "[" << role.name << role.rank << "] " << line << std::endl;
    }
  };
  const auto result = launch::spawn_ranks(spawn);
  if (result.first_failure) {
    std::cerr << "gradwire: " << to_string(*result.first_failure)
              << (spawn.nproc > 1 ? "; the other ranks were ended" : "")
              << std::endl;
  }
  return result.exit_code();
}

}  // namespace gradwire::apps
