#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gradwire::apps {

// One option of a subcommand. The value that its target has when it is declared
// is the default.
struct Flag {
  // What a value is read into. A bool is a switch and takes no value; a vector
  // takes every value given, any other target the last one.
  using Target = std::variant<
      bool*,
      int*,
      std::int64_t*,
      std::uint64_t*,
      double*,
      std::string*,
      std::optional<int>*,
      std::vector<std::string>*>;

  // "--nproc,-n", or "command" for what stands behind all options.
  std::string names;
  Target target;
  std::string help;
  // The option that must not be given together with this one.
  std::string excludes = {};
  // Set by gradwire itself when it starts itself again: not in the help.
  bool internal = false;

  // "--nproc".
  std::string name() const {
    return names.substr(0, names.find(','));
  }
  bool is_positional() const {
    return names.front() != '-';
  }
};

// The options of one subcommand, in the order of its help. Targets must outlive
// it.
class Flags {
 public:
  // `target` is any of Flag::Target without the pointer.
  template <class T>
  Flag& add(std::string names, T& target, std::string help) {
    return flags_.emplace_back(
        Flag{std::move(names), &target, std::move(help)});
  }

  const std::vector<Flag>& all() const {
    return flags_;
  }

 private:
  std::vector<Flag> flags_;
};

// Reads the values that were given into the target. Throws Error that names the
// option, the value and what is expected.
void assign(const Flag& flag, const std::vector<std::string>& values);

// "INTEGER", "NUMBER" or "TEXT"; "" for a switch.
std::string kind_of(const Flag& flag);

// The value its target has now, "" where there is none.
std::string value_of(const Flag& flag);

}  // namespace gradwire::apps
