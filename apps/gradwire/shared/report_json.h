#pragma once

#include <nlohmann/json_fwd.hpp>

#include "gradwire/ddp/stats.h"

namespace gradwire::apps {

// Statistics under the names of visit_fields. What is not finite is null, as
// JSON has no NaN.
nlohmann::json to_json(const Stats& stats);
nlohmann::json to_json(const Bytes& bytes);

}  // namespace gradwire::apps
