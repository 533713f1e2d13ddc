#include "gradwire/base/env.h"

#include <charconv>
#include <cstdlib>

#include "gradwire/base/error.h"

namespace gradwire {

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    // Safe as long as no thread sets variables, and nothing here does.
    // NOLINTNEXTLINE(concurrency-mt-unsafe)
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') {
      return std::nullopt;
    }
    return value;
  };
}

std::optional<long> integer_variable(
    const Environment& environment, const std::string& name) {
  const auto text = environment(name);
  if (!text) {
    return std::nullopt;
  }
  long value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, code] = std::from_chars(text->data(), end, value);
  if (code != std::errc() || stop != end) {
    fail(
        "launch",
        "environment variable ",
        name,
        " is '",
        *text,
        "', expected an integer");
  }
  return value;
}

}  // namespace gradwire
