#include "gradwire/hook/step_results.h"

#include <utility>

namespace gradwire {
namespace {

bool succeeded(const Future& result) {
  try {
    result.wait();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

std::optional<bool> StepResults::end() {
  if (results_.empty()) {
    return std::nullopt;
  }
  bool good = std::exchange(complete_, false);
  for (const Future& result : results_) {
    good = succeeded(result) && good;
  }
  results_.clear();
  return good && !*not_finite_;
}

}  // namespace gradwire
