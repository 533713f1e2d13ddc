#pragma once

#include <string>
#include <vector>

#include "apps/gradwire/bench/lists.h"
#include "gradwire/launch/child.h"

namespace gradwire::apps {

struct ToolResult {
  int code = 0;
  // Standard output and error, lines joined by "; ".
  std::string output;
};

// Runs a program to its end; a minute is the longest it may take. Throws Error
// when it cannot be started or takes longer.
ToolResult run_tool(const std::vector<std::string>& command);

// Becomes `command` in a network namespace of its own (and a user namespace
// where this is not root). Everything made in there goes with its last
// process. Throws Error that says what is missing and what to do about it.
[[noreturn]] void reexecute_in_namespace(std::vector<std::string> command);

// Throws Error when the kernel has no such way to deal with congestion.
void check_congestion(const std::string& congestion);

// Sets up the loopback interface of a namespace that is new.
void bring_up_loopback();

// One host per rank inside of this process's network namespace: a namespace
// with an interface e0 on a common bridge, what leaves it shaped by tbf, and
// one of TCP's ways to deal with congestion for all connections.
// Nameless: the hosts exist while this object or a process in them does.
// Throws Error that says which command failed and what it needs.
class ShapedNetwork {
 public:
  ShapedNetwork(int hosts, const Link& link, const std::string& congestion);

  // From now on everything leaves at this link's rate.
  void shape(const Link& link);

  // What to put before a program to run it on that host.
  std::vector<std::string> enter(int host) const;
  static std::string address(int host);
  static constexpr const char* kInterface = "e0";

 private:
  void add_host(int host);
  void set_congestion(int host, const std::string& congestion);

  std::vector<Fd> namespaces_;
};

}  // namespace gradwire::apps
