#include "gradwire/rpc/network.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <vector>

#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

constexpr const char* kVariable = "TP_SOCKET_IFNAME";

struct Interface {
  std::string name;
  std::string address;
};

std::vector<Interface> interfaces() {
  std::vector<Interface> result;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    return result;
  }
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_addr->sa_family != AF_INET &&
                                   i->ifa_addr->sa_family != AF_INET6)) {
      continue;
    }
    const socklen_t length = i->ifa_addr->sa_family == AF_INET
                                 ? sizeof(sockaddr_in)
                                 : sizeof(sockaddr_in6);
    char text[NI_MAXHOST];
    if (getnameinfo(
            i->ifa_addr,
            length,
            text,
            sizeof text,
            nullptr,
            0,
            NI_NUMERICHOST) == 0) {
      result.push_back({i->ifa_name, text});
    }
  }
  freeifaddrs(all);
  return result;
}

std::string find_interface(
    const std::string& interface, const std::string& address) {
  std::vector<std::string> names;
  for (const auto& each : interfaces()) {
    if (interface.empty() ? each.address == address : each.name == interface) {
      return each.name;
    }
    names.push_back(each.name);
  }
  if (!interface.empty()) {
    fail(
        "rpc",
        "there is no interface '",
        interface,
        "' with an address on this machine, expected one of ",
        join(names));
  }
  return {};
}

}  // namespace

void choose_interface(
    const std::string& interface, const std::string& address) {
  static std::mutex mutex;
  static std::optional<std::string> chosen;
  const std::lock_guard lock(mutex);
  // Torch reads the variable when an agent starts; nothing else of ours sets
  // one.
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  const char* set = std::getenv(kVariable);
  const std::string given =
      !interface.empty() || set == nullptr ? interface : set;
  const std::string name = find_interface(given, address);
  if (chosen && *chosen != name) {
    fail(
        "rpc",
        "this process listens on interface '",
        *chosen,
        "' already and cannot change to '",
        name,
        "'");
  }
  if (!name.empty()) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe)
    setenv(kVariable, name.c_str(), /*overwrite=*/1);
  }
  chosen = name;
}

}  // namespace gradwire::rpc
