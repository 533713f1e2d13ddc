#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace gradwire {

// One option of a hook or codec: its name, its default and the values it may
// have. The type of `fallback`, the default, says which kind of value it takes:
// integer, number, switch (on/off) or one word out of `choices`.
struct Option {
  using Value = std::variant<std::int64_t, double, bool, std::string>;

  std::string name;
  Value fallback;
  std::string help;
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};
  // Words that stand for integers outside of the range.
  std::map<std::string, std::int64_t> named = {};
};

std::string to_string(const Option::Value& value);

// "512", "on", "machine": the default as a spec says it.
std::string describe_fallback(const Option& option);

// "integer from 1 to 64", "on or off", "one of nearest, stochastic".
std::string describe_range(const Option& option);

// The options of one hook with every value checked and every fallback filled
// in. Reading an option that was never declared is a bug and throws Error.
class Options {
 public:
  // Throws Error naming `owner`, the option, the value and what is allowed.
  Options(
      const std::string& owner,
      const std::vector<Option>& declared,
      const std::map<std::string, std::string>& given);
  Options() = default;

  std::int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  bool flag(const std::string& name) const;
  const std::string& word(const std::string& name) const;

  // Whether the option has its default value.
  bool is_fallback(const Option& option) const;
  // The value as a spec says it.
  std::string text(const Option& option) const;

 private:
  template <class T>
  const T& get(const std::string& name) const;

  std::map<std::string, Option::Value> values_;
};

// "int8:block=256": the canonical spec of `owner` with these options, sorted by
// name, without those that have their fallback. Equal options have equal specs.
std::string to_spec(
    const std::string& owner,
    const std::vector<Option>& declared,
    const Options& options);

}  // namespace gradwire
