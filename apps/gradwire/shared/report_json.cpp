#include "apps/gradwire/shared/report_json.h"

#include <nlohmann/json.hpp>

namespace gradwire::apps {
namespace {

template <class T>
nlohmann::json array_of(const std::vector<T>& rows);

// The library writes what is not finite as null.
template <class T>
nlohmann::json json_of(const T& value) {
  if constexpr (HasFields<T>) {
    nlohmann::json json;
    visit_fields(value, [&](const char* name, const auto& field) {
      json[name] = json_of(field);
    });
    return json;
  } else if constexpr (requires { array_of(value); }) {
    return array_of(value);
  } else {
    return value;
  }
}

template <class T>
nlohmann::json array_of(const std::vector<T>& rows) {
  auto json = nlohmann::json::array();
  for (const auto& row : rows) {
    json.push_back(json_of(row));
  }
  return json;
}

}  // namespace

nlohmann::json to_json(const Stats& stats) {
  return json_of(stats);
}

nlohmann::json to_json(const Bytes& bytes) {
  return json_of(bytes);
}

}  // namespace gradwire::apps
