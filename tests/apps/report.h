#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace gradwire::test {

// Payload and metadata together, of a report's `sent`.
inline std::int64_t total_of(const nlohmann::json& sent) {
  return sent.at("payload").get<std::int64_t>() +
         sent.at("metadata").get<std::int64_t>();
}

}  // namespace gradwire::test
