#include "gradwire/ddp/stats.h"

#include <cmath>
#include <iomanip>
#include <limits>
#include <ostream>
#include <sstream>

#include "gradwire/base/text.h"

namespace gradwire {

namespace {

// ", 0.254 of the 25.2 MB that plain averaging sends"
std::string saving(const Stats& stats) {
  if (stats.plain_bytes == 0 || stats.steps == 0) {
    return "";
  }
  std::ostringstream text;
  text << std::fixed << std::setprecision(3) << ", "
       << static_cast<double>(stats.last.sent.total()) /
              static_cast<double>(stats.plain_bytes)
       << " of the " << human_bytes(static_cast<double>(stats.plain_bytes))
       << " that plain averaging sends";
  return text.str();
}

// How hard gradients were compressed, and what of them is still owed.
void write_ratio(std::ostream& out, const Stats& stats) {
  std::int64_t elems = 0;
  std::int64_t sent = 0;
  std::int64_t compressed = 0;
  for (const ParameterReport& report : stats.by_parameter) {
    elems += report.elems;
    sent += report.sent_elems;
    compressed += report.rank > 0;
  }
  out << "gradients of " << elems << " numbers sent as " << sent << ", "
      << std::fixed << std::setprecision(1) << compression_ratio(stats)
      << " times fewer: " << compressed << " of " << stats.by_parameter.size()
      << " parameters by low rank";
  if (const double norm = residual_norm(stats); std::isfinite(norm)) {
    out << std::setprecision(4) << ", residual norm " << norm;
  }
  out << "\n";
}

}  // namespace

double ratio(const Stats& stats) {
  const auto sent = stats.last.sent.total();
  return sent > 0 ? static_cast<double>(stats.plain_bytes) /
                        static_cast<double>(sent)
                  : 0;
}

double compression_ratio(const Stats& stats) {
  double elems = 0;
  double sent = 0;
  for (const ParameterReport& report : stats.by_parameter) {
    elems += static_cast<double>(report.elems);
    sent += static_cast<double>(report.sent_elems);
  }
  return sent > 0 ? elems / sent : 1;
}

double residual_norm(const Stats& stats) {
  double squares = std::numeric_limits<double>::quiet_NaN();
  for (const ParameterReport& report : stats.by_parameter) {
    if (std::isfinite(report.residual_norm)) {
      squares = (std::isfinite(squares) ? squares : 0) +
                report.residual_norm * report.residual_norm;
    }
  }
  return std::sqrt(squares);
}

std::ostream& operator<<(std::ostream& out, const Stats& stats) {
  const auto flags = out.flags();
  const auto precision = out.precision();
  out << "hook " << stats.hook << ", rank " << stats.rank << " of "
      << stats.world << ", " << stats.parameters << " parameters in "
      << stats.bucket_bytes.size() << " buckets"
      << (stats.rebuilt ? " (rebuilt)" : "") << "\n"
      << stats.steps << " steps, sent "
      << human_bytes(static_cast<double>(stats.sent.total())) << ", last step "
      << human_bytes(static_cast<double>(stats.last.sent.total()))
      << " (metadata "
      << human_bytes(static_cast<double>(stats.last.sent.metadata)) << ")"
      << saving(stats) << "\n";
  if (!stats.by_parameter.empty()) {
    write_ratio(out, stats);
  }
  out << std::fixed << std::setprecision(2) << "mean step: forward "
      << stats.mean.forward_ms << " ms, backward " << stats.mean.backward_ms
      << " ms, of it exposed communication " << stats.mean.exposed_ms << " ms";
  out.flags(flags);
  out.precision(precision);
  return out;
}

}  // namespace gradwire
