#include "gradwire/comm/init.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <filesystem>

#include "gradwire/base/env.h"
#include "gradwire/base/error.h"
#include "gradwire/base/placement.h"
#include "gradwire/comm/agreement_impl.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/comm/shared_store_impl.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kDefaultTimeout{600};
constexpr const char* kLoopback = "127.0.0.1";

// The options with everything the environment knows filled in.
struct Plan {
  Placement place;
  std::string file;
  // All ranks are known to be on this machine.
  bool local = false;
  milliseconds timeout;
  std::string interface;
  std::string transport;
};

milliseconds choose_timeout(
    const InitOptions& options, const Environment& environment) {
  milliseconds timeout = kDefaultTimeout;
  if (options.timeout) {
    timeout = *options.timeout;
  } else if (
      const auto value = integer_variable(environment, "GRADWIRE_TIMEOUT_S")) {
    timeout = seconds(*value);
  }
  if (timeout <= milliseconds(0)) {
    fail(
        "comm",
        "init got a timeout of ",
        timeout.count(),
        " ms, expected more than 0");
  }
  return timeout;
}

std::string choose_transport(
    const InitOptions& options, const Environment& environment) {
  const std::string fallback = transports().front().name;
  const std::string name =
      options.transport.empty()
          ? environment("GRADWIRE_TRANSPORT").value_or(fallback)
          : options.transport;
  return find_transport(name).info.name;
}

void apply(const InitOptions& options, Placement& place) {
  if (options.rank.has_value() != options.world.has_value()) {
    fail("comm", "init got only one of rank and world, expected both");
  }
  if (options.rank) {
    place.launcher = "options";
    place.rank = *options.rank;
    place.world = *options.world;
    place.local_world = 0;
    place.agent_store = false;
  }
  if (!options.host.empty()) {
    place.host = options.host;
    place.agent_store = false;
  }
  if (options.port) {
    place.port = *options.port;
  }
  if (place.world < 1 || place.rank < 0 || place.rank >= place.world) {
    fail(
        "comm",
        "init got rank ",
        place.rank,
        " of ",
        place.world,
        ", expected 0 <= rank < world");
  }
  if (place.port < 0 || place.port > 65535) {
    fail("comm", "init got port ", place.port, ", expected 0 to 65535");
  }
}

Plan make_plan(const InitOptions& options) {
  const Environment environment = process_environment();
  Plan plan;
  plan.place = detect_placement(environment);
  apply(options, plan.place);
  plan.timeout = choose_timeout(options, environment);
  plan.interface = options.interface.empty()
                       ? environment("GLOO_SOCKET_IFNAME").value_or("")
                       : options.interface;
  plan.transport = choose_transport(options, environment);
  plan.file = options.file;
  const auto& place = plan.place;
  plan.local = place.world == 1 || place.local_world == place.world;
  if (plan.file.empty() && place.host.empty() && !place.job.empty() &&
      plan.local) {
    const auto folder = std::filesystem::temp_directory_path();
    plan.file = folder / concat("gradwire-", getuid(), "-", place.job);
  }
  if (place.world > 1 && plan.file.empty() && place.host.empty()) {
    fail(
        "comm",
        place.launcher,
        " started ",
        place.world,
        " ranks but said no address to meet at: set MASTER_ADDR and "
        "MASTER_PORT to rank 0's, or give init a host or a file");
  }
  return plan;
}

// Who serves the store.
std::string server_of(const Placement& place) {
  return place.agent_store ? "the launcher" : "rank 0";
}

bool serves_store(const Placement& place) {
  return place.rank == 0 && !place.agent_store;
}

StorePtr open_tcp_store(const Plan& plan) {
  const auto& place = plan.place;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.isServer = serves_store(place);
  options.numWorkers = place.world;
  options.waitWorkers = false;
  options.timeout = plan.timeout;
  // A second init() of the same process finds its own server again.
  options.multiTenant = true;
  StorePtr store = c10::make_intrusive<c10d::TCPStore>(place.host, options);
  if (place.agent_store) {
    store = c10::make_intrusive<c10d::PrefixStore>(
        concat("/worker/attempt_", place.attempt), store);
  }
  return store;
}

StorePtr open_file_store(const Plan& plan) {
  auto store =
      c10::make_intrusive<c10d::FileStore>(plan.file, plan.place.world);
  store->setTimeout(plan.timeout);
  return store;
}

std::string explain_unreachable(const Plan& plan, const std::string& why) {
  const auto& place = plan.place;
  const std::string rank = concat(
      "[gradwire.comm] rank ", place.rank, " of ", place.world, " cannot ");
  const std::string end = concat(
      " within ",
      static_cast<double>(plan.timeout.count()) / 1000.0,
      " s: ",
      why);
  if (!plan.file.empty()) {
    return concat(rank, "open the file '", plan.file, "' of the store", end);
  }
  const std::string where =
      concat(" the store at ", place.host, ":", place.port);
  if (serves_store(place)) {
    return concat(rank, "serve", where, end);
  }
  return concat(
      rank, "reach", where, ", which ", server_of(place), " serves,", end);
}

StorePtr open_store(const Plan& plan) {
  const auto failure = [plan](const std::string& why) {
    return CommError(explain_unreachable(plan, why));
  };
  if (!plan.file.empty()) {
    return open_shared_store(
        [plan] { return open_file_store(plan); },
        concat("file '", plan.file, "'"),
        plan.timeout,
        failure);
  }
  if (plan.place.world == 1 && plan.place.host.empty()) {
    return c10::make_intrusive<c10d::HashStore>();
  }
  return open_shared_store(
      [plan] { return open_tcp_store(plan); },
      server_of(plan.place),
      plan.timeout,
      failure);
}

// The local address from which `host` is reached. Asking the kernel for the
// route beats resolving the own host name, which on many machines is 127.0.1.1.
std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) {
    return {};
  }
  std::string result;
  const int probe = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  auto* raw = reinterpret_cast<sockaddr*>(&local);
  char text[NI_MAXHOST];
  if (connect(probe, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(probe, raw, &length) == 0 &&
      getnameinfo(raw, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
          0) {
    result = text;
  }
  close(probe);
  freeaddrinfo(found);
  return result;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

// The first address of this machine that others can reach.
std::string outward_address() {
  std::string result;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) {
    return result;
  }
  for (const ifaddrs* i = interfaces; i && result.empty(); i = i->ifa_next) {
    char text[NI_MAXHOST];
    if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET &&
        (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK) &&
        getnameinfo(
            i->ifa_addr,
            sizeof(sockaddr_in),
            text,
            sizeof text,
            nullptr,
            0,
            NI_NUMERICHOST) == 0) {
      result = text;
    }
  }
  freeifaddrs(interfaces);
  return result;
}

// Empty: what the own host name resolves to.
std::string choose_address(const Plan& plan) {
  const std::string& host = plan.place.host;
  if (host.empty()) {
    return plan.local ? kLoopback : "";
  }
  const std::string address = address_towards(host);
  // Rank 0 may find its own name in /etc/hosts as 127.0.1.1: no good to others.
  const bool meant = plan.local || host == "localhost" || is_loopback(host);
  return is_loopback(address) && !meant ? outward_address() : address;
}

std::vector<Fact> facts_of(const Plan& plan) {
  auto facts = library_facts();
  facts.push_back({"world", concat(plan.place.world)});
  facts.push_back({"transport", plan.transport});
  if (find_transport(plan.transport).one_process) {
    facts.push_back({"process of the ranks", concat(getpid())});
  }
  return facts;
}

}  // namespace

Group init(const InitOptions& options) {
  const Plan plan = make_plan(options);
  const auto& place = plan.place;
  const StorePtr root = open_store(plan);
  GroupOptions group;
  group.timeout = plan.timeout;
  group.transport = plan.transport;
  group.interface = plan.interface;
  group.address = choose_address(plan);
  // Several init() calls on one store must not read each other's keys.
  const auto turn = root->add(concat("gradwire/init/", place.rank), 1);
  const StorePtr store =
      c10::make_intrusive<c10d::PrefixStore>(concat("gradwire/", turn), root);
  agree_through(
      *store,
      "init",
      Origin{group.name, place.rank, place.world},
      plan.timeout,
      "init",
      facts_of(plan));
  return make_group(store, place.rank, place.world, group);
}

}  // namespace gradwire
