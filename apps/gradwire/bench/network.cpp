#include "apps/gradwire/bench/network.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "gradwire/base/env.h"
#include "gradwire/base/error.h"
#include "gradwire/launch/spawn.h"

namespace gradwire::apps {
namespace {

constexpr auto kToolDeadline = std::chrono::seconds(60);
constexpr const char* kOwnNamespace = "/proc/self/ns/net";
// The network of ShapedNetwork::address.
constexpr const char* kSubnet = "10.77.0.0/24";

// The program's path. Ordinary users often lack the sbin folders, where the
// programs of iproute2 are, in their PATH.
std::string find_tool(const std::string& name, const std::string& package) {
  const auto path = process_environment()("PATH").value_or("") +
                    ":/usr/sbin:/usr/bin:/sbin:/bin";
  for (std::size_t begin = 0; begin < path.size();) {
    const auto end = std::min(path.find(':', begin), path.size());
    const auto file = path.substr(begin, end - begin) + "/" + name;
    if (access(file.c_str(), X_OK) == 0) {
      return file;
    }
    begin = end + 1;
  }
  fail(
      "app",
      "--link needs the program ",
      name,
      ", which is not there: install it (apt-get install ",
      package,
      ") or leave --link out");
}

std::string ip_tool() {
  return find_tool("ip", "iproute2");
}

// `needs` says what the kernel must offer for the command to work.
void configure(const std::vector<std::string>& command, const char* needs) {
  const auto result = run_tool(command);
  if (result.code != 0) {
    fail(
        "app",
        "--link cannot shape the network: '",
        join(command, " "),
        "' failed (",
        result.output,
        "), expected ",
        needs);
  }
}

Fd open_namespace() {
  Fd fd(open(kOwnNamespace, O_RDONLY | O_CLOEXEC));
  if (!fd) {
    fail("app", "cannot open ", kOwnNamespace, ": ", std::strerror(errno));
  }
  return fd;
}

Fd new_namespace() {
  const Fd home = open_namespace();
  if (unshare(CLONE_NEWNET) != 0) {
    fail(
        "app",
        "--link cannot make a network namespace: ",
        std::strerror(errno),
        ", expected a limit user.max_net_namespaces that allows one per rank");
  }
  Fd made = open_namespace();
  if (setns(home.get(), CLONE_NEWNET) != 0) {
    fail("app", "cannot return to a namespace: ", std::strerror(errno));
  }
  return made;
}

}  // namespace

ToolResult run_tool(const std::vector<std::string>& command) {
  launch::SpawnOptions options;
  options.command = command;
  options.deadline = kToolDeadline;
  std::vector<std::string> lines;
  options.on_line = [&](int, launch::Stream, std::string_view line) {
    lines.emplace_back(line);
  };
  const auto result = launch::spawn_ranks(options);
  if (result.deadline_passed || result.signal != 0) {
    fail(
        "app",
        "'",
        join(command, " "),
        result.signal != 0 ? "' was interrupted" : "' does not end");
  }
  return {result.exit_code(), join(lines, "; ")};
}

void reexecute_in_namespace(std::vector<std::string> command) {
  find_tool("nsenter", "util-linux");
  find_tool("tc", "iproute2");
  ip_tool();
  std::vector<std::string> words{find_tool("unshare", "util-linux"), "--net"};
  if (geteuid() != 0) {
    words.insert(words.end(), {"--user", "--map-root-user"});
  }
  auto probe = words;
  probe.push_back("true");
  const auto result = run_tool(probe);
  if (result.code != 0) {
    fail(
        "app",
        "--link needs a network namespace, and '",
        join(probe, " "),
        "' failed (",
        result.output,
        "): run as root, allow user namespaces (sysctl "
        "kernel.unprivileged_userns_clone=1), or leave --link out");
  }
  command[0] = std::filesystem::read_symlink("/proc/self/exe");
  words.push_back("--");
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> argv;
  for (auto& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  fail("app", "cannot run '", words[0], "': ", std::strerror(errno));
}

void check_congestion(const std::string& congestion) {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  const std::vector<std::string> known(
      std::istream_iterator<std::string>(file), {});
  if (std::ranges::count(known, congestion) == 0) {
    fail(
        "app",
        "--congestion got '",
        congestion,
        "', this kernel has ",
        join(known, ", "),
        " (modprobe tcp_bbr and the like add others)");
  }
}

void bring_up_loopback() {
  configure({ip_tool(), "link", "set", "lo", "up"}, "a namespace of our own");
}

ShapedNetwork::ShapedNetwork(
    int hosts, const Link& link, const std::string& congestion) {
  const std::string ip = ip_tool();
  constexpr auto kBridge = "a kernel with bridges (modprobe bridge)";
  configure({ip, "link", "add", "gwbr", "type", "bridge"}, kBridge);
  configure({ip, "link", "set", "gwbr", "up"}, kBridge);
  for (int host = 0; host < hosts; ++host) {
    add_host(host);
    set_congestion(host, congestion);
  }
  shape(link);
}

void ShapedNetwork::add_host(int host) {
  constexpr auto kVeth = "a kernel with veth (modprobe veth)";
  const std::string ip = ip_tool();
  const std::string port = concat("gwv", host);
  namespaces_.push_back(new_namespace());
  const std::string there = enter(host).back().substr(std::strlen("--net="));
  configure(
      {ip,
       "link",
       "add",
       port,
       "type",
       "veth",
       "peer",
       "name",
       kInterface,
       "netns",
       there},
      kVeth);
  configure({ip, "link", "set", port, "master", "gwbr", "up"}, kVeth);
  const auto configure_there = [&](std::vector<std::string> arguments) {
    auto words = enter(host);
    words.push_back(ip);
    words.insert(words.end(), arguments.begin(), arguments.end());
    configure(words, kVeth);
  };
  configure_there({"addr", "add", address(host) + "/24", "dev", kInterface});
  configure_there({"link", "set", kInterface, "up"});
  configure_there({"link", "set", "lo", "up"});
}

// Set on the route, which accepts every algorithm that the kernel has. The
// default of a namespace accepts only those allowed to ordinary users.
void ShapedNetwork::set_congestion(int host, const std::string& congestion) {
  auto words = enter(host);
  words.insert(
      words.end(),
      {ip_tool(),
       "route",
       "replace",
       kSubnet,
       "dev",
       kInterface,
       "src",
       address(host),
       "congctl",
       congestion});
  configure(words, "a kernel whose routes choose congestion control");
}

void ShapedNetwork::shape(const Link& link) {
  const std::string tc = find_tool("tc", "iproute2");
  for (int host = 0; host < static_cast<int>(namespaces_.size()); ++host) {
    auto words = enter(host);
    const std::string rate =
        concat(static_cast<long long>(link.bits_per_second), "bit");
    const std::string burst = concat(link.burst_bytes());
    for (const std::string& word : std::initializer_list<std::string>{
             tc,
             "qdisc",
             "replace",
             "dev",
             kInterface,
             "root",
             "tbf",
             "rate",
             rate,
             "burst",
             burst,
             "latency",
             "50ms"}) {
      words.push_back(word);
    }
    configure(words, "a kernel with the tbf qdisc (modprobe sch_tbf)");
  }
}

std::vector<std::string> ShapedNetwork::enter(int host) const {
  const int fd = namespaces_.at(static_cast<std::size_t>(host)).get();
  return {
      find_tool("nsenter", "util-linux"),
      concat("--net=/proc/", getpid(), "/fd/", fd)};
}

std::string ShapedNetwork::address(int host) {
  return concat("10.77.0.", host + 1);
}

}  // namespace gradwire::apps
