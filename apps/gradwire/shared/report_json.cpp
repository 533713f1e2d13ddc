#include "apps/gradwire/shared/report_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace gradwire::apps {

nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

nlohmann::json rows_of(const std::vector<ParameterReport>& reports) {
  auto rows = nlohmann::json::array();
  for (const ParameterReport& report : reports) {
    rows.push_back(
        {{"name", report.name},
         {"elems", report.elems},
         {"sent_elems", report.sent_elems},
         {"rank", report.rank},
         {"residual_norm", number_or_null(report.residual_norm)}});
  }
  return rows;
}

}  // namespace gradwire::apps
