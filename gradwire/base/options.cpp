#include "gradwire/base/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "gradwire/base/error.h"
#include "gradwire/base/spec.h"

namespace gradwire {
namespace {

template <class T>
bool parse_whole(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  return code == std::errc() && stop == end;
}

// Fills `value`, which holds the fallback and thereby the kind, from `text`.
struct Parse {
  const Option& option;
  const std::string& text;

  bool operator()(std::int64_t& value) const {
    if (const auto word = option.named.find(text); word != option.named.end()) {
      value = word->second;
      return true;
    }
    return parse_whole(text, value) && in_range(static_cast<double>(value));
  }
  bool operator()(double& value) const {
    return parse_whole(text, value) && std::isfinite(value) && in_range(value);
  }
  bool operator()(bool& value) const {
    value = text == "on";
    return text == "on" || text == "off";
  }
  bool operator()(std::string& value) const {
    value = text;
    return std::ranges::find(option.choices, text) != option.choices.end();
  }
  bool in_range(double value) const {
    return value >= option.least && value <= option.most;
  }
};

// 1048576, not 1.04858e+06.
std::string digits(double value) {
  const auto whole = static_cast<std::int64_t>(value);
  return static_cast<double>(whole) == value ? concat(whole) : concat(value);
}

// As few digits as give the same number again.
std::string shortest(double value) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::vector<std::string> names_of(const std::vector<Option>& options) {
  std::vector<std::string> names;
  names.reserve(options.size());
  for (const auto& option : options) {
    names.push_back(option.name);
  }
  return names;
}

}  // namespace

std::string to_string(const Option::Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) {
    return *flag ? "on" : "off";
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return shortest(*number);
  }
  return std::visit([](const auto& v) { return concat(v); }, value);
}

namespace {

std::string describe_numbers(const Option& option) {
  const bool whole = std::holds_alternative<std::int64_t>(option.fallback);
  std::string text = whole ? "integer" : "number";
  if (std::isfinite(option.least) && std::isfinite(option.most)) {
    return concat(
        text, " from ", digits(option.least), " to ", digits(option.most));
  }
  if (std::isfinite(option.least)) {
    return concat(text, " of at least ", digits(option.least));
  }
  if (std::isfinite(option.most)) {
    return concat(text, " of at most ", digits(option.most));
  }
  return text;
}

std::string as_in_spec(const Option& option, const Option::Value& value) {
  for (const auto& [word, number] : option.named) {
    if (value == Option::Value(number)) {
      return word;
    }
  }
  return to_string(value);
}

}  // namespace

std::string describe_fallback(const Option& option) {
  return as_in_spec(option, option.fallback);
}

std::string describe_range(const Option& option) {
  if (std::holds_alternative<bool>(option.fallback)) {
    return "on or off";
  }
  if (std::holds_alternative<std::string>(option.fallback)) {
    return "one of " + join(option.choices);
  }
  std::string text = describe_numbers(option);
  for (const auto& [word, value] : option.named) {
    text += " or " + word;
  }
  return text;
}

Options::Options(
    const std::string& owner,
    const std::vector<Option>& declared,
    const std::map<std::string, std::string>& given) {
  for (const auto& option : declared) {
    values_[option.name] = option.fallback;
  }
  for (const auto& [name, text] : given) {
    const auto known = std::ranges::find(declared, name, &Option::name);
    if (known == declared.end()) {
      const auto names = names_of(declared);
      const std::string list =
          names.empty() ? "takes no options" : "options are " + join(names);
      fail(
          "hook",
          "unknown option '",
          name,
          "' of '",
          owner,
          "', ",
          list,
          did_you_mean(name, names));
    }
    if (!std::visit(Parse{*known, text}, values_[name])) {
      fail(
          "hook",
          "option '",
          name,
          "' of '",
          owner,
          "' got '",
          text,
          "', expected ",
          describe_range(*known));
    }
  }
}

template <class T>
const T& Options::get(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end() || !std::holds_alternative<T>(found->second)) {
    fail("hook", "option '", name, "' was not declared with this type");
  }
  return std::get<T>(found->second);
}

std::int64_t Options::integer(const std::string& name) const {
  return get<std::int64_t>(name);
}

double Options::number(const std::string& name) const {
  return get<double>(name);
}

bool Options::flag(const std::string& name) const {
  return get<bool>(name);
}

const std::string& Options::word(const std::string& name) const {
  return get<std::string>(name);
}

bool Options::is_fallback(const Option& option) const {
  return values_.at(option.name) == option.fallback;
}

std::string Options::text(const Option& option) const {
  return as_in_spec(option, values_.at(option.name));
}

std::string to_spec(
    const std::string& owner,
    const std::vector<Option>& declared,
    const Options& options) {
  std::map<std::string, std::string> given;
  for (const Option& option : declared) {
    if (!options.is_fallback(option)) {
      given[option.name] = options.text(option);
    }
  }
  return to_string(Spec{owner, std::move(given), nullptr});
}

}  // namespace gradwire
