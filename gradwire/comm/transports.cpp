#include "gradwire/comm/transports.h"

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/comm/transport_impl.h"

// The only list of transports, the default first. A transport is a file of this
// name beside this one that defines `TransportRow <name>_transport()`.
#define GRADWIRE_TRANSPORTS(X) \
  X(gloo)                      \
  X(local)

namespace gradwire {

#define GRADWIRE_DECLARE(name) TransportRow name##_transport();
GRADWIRE_TRANSPORTS(GRADWIRE_DECLARE)
#undef GRADWIRE_DECLARE

const std::vector<TransportRow>& transport_rows() {
#define GRADWIRE_ROW(name) name##_transport(),
  static const std::vector<TransportRow> rows{
      GRADWIRE_TRANSPORTS(GRADWIRE_ROW)};
#undef GRADWIRE_ROW
  return rows;
}

const TransportRow& find_transport(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& row : transport_rows()) {
    if (row.info.name == name) {
      return row;
    }
    names.push_back(row.info.name);
  }
  fail(
      "comm",
      "there is no transport '",
      name,
      "', expected one of ",
      join(names),
      did_you_mean(name, names));
}

std::vector<TransportInfo> transports() {
  std::vector<TransportInfo> result;
  for (const auto& row : transport_rows()) {
    result.push_back(row.info);
  }
  return result;
}

bool is_served(c10::DeviceType device) {
  return std::ranges::any_of(transport_rows(), [&](const auto& row) {
    return std::ranges::find(row.info.devices, device) !=
           row.info.devices.end();
  });
}

std::string served_devices() {
  std::vector<std::string> names;
  for (const auto& row : transport_rows()) {
    for (const auto device : row.info.devices) {
      const auto name = c10::DeviceTypeName(device, /*lower_case=*/true);
      if (std::ranges::find(names, name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  return join(names, " or ");
}

}  // namespace gradwire
