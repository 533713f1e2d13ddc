#include "gradwire/ddp/stats.h"

#include <iomanip>
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
       << static_cast<double>(stats.sent_last_step.total()) /
              static_cast<double>(stats.plain_bytes)
       << " of the " << human_bytes(static_cast<double>(stats.plain_bytes))
       << " that plain averaging sends";
  return text.str();
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Stats& stats) {
  const auto flags = out.flags();
  const auto precision = out.precision();
  out << "hook " << stats.hook << ", rank " << stats.rank << " of "
      << stats.world << ", " << stats.parameters << " parameters in "
      << stats.bucket_bytes.size() << " buckets"
      << (stats.rebuilt ? " (rebuilt)" : "") << "\n"
      << stats.steps << " steps, sent "
      << human_bytes(static_cast<double>(stats.sent.total())) << ", last step "
      << human_bytes(static_cast<double>(stats.sent_last_step.total()))
      << " (metadata "
      << human_bytes(static_cast<double>(stats.sent_last_step.metadata)) << ")"
      << saving(stats) << "\n"
      << std::fixed << std::setprecision(2) << "mean step: forward "
      << stats.mean.forward_ms << " ms, backward " << stats.mean.backward_ms
      << " ms, of it exposed communication " << stats.mean.exposed_ms << " ms";
  out.flags(flags);
  out.precision(precision);
  return out;
}

}  // namespace gradwire
