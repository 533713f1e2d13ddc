#include "apps/gradwire/cli/flags.h"

#include <charconv>
#include <type_traits>

#include "gradwire/base/error.h"

namespace gradwire::apps {
namespace {

template <class T>
void parse_number(const Flag& flag, const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code == std::errc() && stop == end) {
    return;
  }
  const char* expected = std::is_floating_point_v<T> ? "a number"
                         : std::is_unsigned_v<T>     ? "an integer from 0"
                                                     : "an integer";
  fail("app", flag.name(), " is '", text, "', expected ", expected);
}

struct Assign {
  const Flag& flag;
  const std::vector<std::string>& values;

  void operator()(bool* target) const {
    *target = true;
  }
  void operator()(std::string* target) const {
    *target = values.back();
  }
  void operator()(std::vector<std::string>* target) const {
    *target = values;
  }
  void operator()(std::optional<int>* target) const {
    parse_number(flag, values.back(), target->emplace());
  }
  template <class T>
  void operator()(T* target) const {
    parse_number(flag, values.back(), *target);
  }
};

struct Kind {
  std::string operator()(const bool*) const {
    return "";
  }
  std::string operator()(const double*) const {
    return "NUMBER";
  }
  std::string operator()(const std::string*) const {
    return "TEXT";
  }
  std::string operator()(const std::vector<std::string>*) const {
    return "TEXT";
  }
  template <class T>
  std::string operator()(const T*) const {
    return "INTEGER";
  }
};

struct Value {
  std::string operator()(const bool*) const {
    return "";
  }
  std::string operator()(const std::vector<std::string>*) const {
    return "";
  }
  std::string operator()(const std::optional<int>* target) const {
    return *target ? concat(**target) : "";
  }
  template <class T>
  std::string operator()(const T* target) const {
    return concat(*target);
  }
};

}  // namespace

void assign(const Flag& flag, const std::vector<std::string>& values) {
  std::visit(Assign{flag, values}, flag.target);
}

std::string kind_of(const Flag& flag) {
  return std::visit(Kind{}, flag.target);
}

std::string value_of(const Flag& flag) {
  return std::visit(Value{}, flag.target);
}

}  // namespace gradwire::apps
