#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "gradwire/ddp/stats.h"

namespace gradwire::apps {

// JSON has no NaN.
nlohmann::json number_or_null(double value);

// One object a parameter: name, elems, sent_elems, rank, residual_norm (null
// when it was not measured).
nlohmann::json rows_of(const std::vector<ParameterReport>& reports);

}  // namespace gradwire::apps
