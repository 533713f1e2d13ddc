#include "apps/gradwire/info.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <iostream>
#include <thread>

#include "gradwire/base/placement.h"
#include "gradwire/base/text.h"

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

}  // namespace

int print_info() {
  std::cout << "gradwire     " << GRADWIRE_VERSION << "\n"
            << "torch        " << TORCH_VERSION << "\n"
            << "backends     gloo (cpu)\n"
            << "processor    " << at::get_cpu_capability() << ", "
            << std::thread::hardware_concurrency() << " cores, "
            << at::get_num_threads() << " compute threads a rank\n"
            << "environment  "
            << describe(detect_placement(process_environment())) << std::endl;
  return 0;
}

}  // namespace gradwire::apps
