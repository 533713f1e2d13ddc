#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <iostream>
#include <thread>
#include <vector>

#include "apps/gradwire/cli/subcommand.h"
#include "gradwire/base/placement.h"
#include "gradwire/base/text.h"
#include "gradwire/comm/transports.h"

namespace gradwire::apps {
namespace {

std::string describe(const Placement& place) {
  if (place.launcher == "none") {
    return "no launcher: a world of one unless --nproc starts more";
  }
  return concat(
      place.launcher,
      ": rank ",
      place.rank,
      " of ",
      place.world,
      ", ",
      place.host.empty() ? "no address given"
                         : concat("meets at ", place.host, ":", place.port));
}

// "gloo (cpu)"
std::string list_transports() {
  std::vector<std::string> result;
  for (const auto& transport : transports()) {
    std::vector<std::string> devices;
    for (const auto device : transport.devices) {
      devices.push_back(c10::DeviceTypeName(device, /*lower_case=*/true));
    }
    result.push_back(concat(transport.name, " (", join(devices), ")"));
  }
  return join(result);
}

int print_info() {
  std::cout << "gradwire     " << GRADWIRE_VERSION << "\n"
            << "torch        " << TORCH_VERSION << "\n"
            << "transports   " << list_transports() << "\n"
            << "processor    " << at::get_cpu_capability() << ", "
            << std::thread::hardware_concurrency() << " cores, "
            << at::get_num_threads() << " compute threads a rank\n"
            << "environment  "
            << describe(detect_placement(process_environment())) << std::endl;
  return 0;
}

}  // namespace

Subcommand info_command() {
  return {
      "info",
      "show versions, processor and the launcher's environment",
      [](Flags&) -> Action {
        return [](const auto&) { return print_info(); };
      }};
}

}  // namespace gradwire::apps
