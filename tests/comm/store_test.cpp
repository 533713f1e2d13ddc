// How a process talks to the store, and what happens when rank 0, which serves
// it, is lost.

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "gradwire/base/error.h"
#include "gradwire/comm/adopt_impl.h"
#include "gradwire/comm/compressed.h"
#include "gradwire/comm/init.h"
#include "gradwire/comm/shared_store_impl.h"
#include "gradwire/launch/spawn.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr seconds kTimeout{2};
constexpr seconds kAFewMore{8};

InitOptions options_of(int rank, int port) {
  return {
      .rank = rank,
      .world = 2,
      .host = "127.0.0.1",
      .port = port,
      .timeout = seconds(20)};
}

// A group as users of Torch have it: its store is theirs.
Group group_of_others(int rank, int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = rank == 0;
  options.timeout = kTimeout;
  return make_group(
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options),
      rank,
      2,
      {.name = "others", .timeout = kTimeout, .address = "127.0.0.1"});
}

template <class Call>
void expect_comm_error(const Call& call, const char* what) {
  try {
    call();
    ADD_FAILURE() << what << " did not throw";
  } catch (const CommError& e) {
    EXPECT_NE(std::string(e.what()).find("rank 0"), std::string::npos)
        << what << ": " << e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << what << " threw another type: " << e.what();
  }
}

template <class Call>
void expect_lost_in_time(const Call& call, const char* what) {
  const auto started = Clock::now();
  expect_comm_error(call, what);
  EXPECT_LT(Clock::now() - started, kTimeout + kAFewMore) << what;
}

// Open connections to a port of this machine.
int connections_to(int port) {
  int count = 0;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string number, local, remote, state;
    for (std::string line; std::getline(file, line);) {
      std::istringstream(line) >> number >> local >> remote >> state;
      const auto colon = remote.rfind(':');
      count += colon != std::string::npos && state == "01" &&
               std::stoi(remote.substr(colon + 1), nullptr, 16) == port;
    }
  }
  return count;
}

// Whatever it is made of: memory, another view, or either below a prefix.
TEST(Store, ViewsOfOneAreLetGo) {
  const auto memory = c10::make_intrusive<c10d::HashStore>();
  {
    const StorePtr view = share_store(memory, "rank 0", kTimeout);
    const StorePtr below = c10::make_intrusive<c10d::PrefixStore>(
        "prefix", share_store(view, "rank 0", kTimeout));
    const StorePtr again = share_store(below, "rank 0", kTimeout);
    EXPECT_GT(memory.use_count(), 1u);
  }
  EXPECT_EQ(memory.use_count(), 1u);
}

TEST(Store, OneConnectionServesAllGroupsOfAProcess) {
  const int port = launch::free_port();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  const Group others = make_group(
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options),
      0,
      1,
      {.name = "others", .timeout = seconds(20), .address = "127.0.0.1"});
  EXPECT_EQ(connections_to(port), 1);
  const auto attach = [&] {
    return adopt(others.impl().process_group, "attach", [] {
      return std::vector<Fact>{};
    });
  };
  const Group first = attach();
  const Group second = attach();
  const Group lane = second.duplicate("lane");
  EXPECT_EQ(connections_to(port), 2);
}

// Rank 1 sends `signal` to rank 0 and asks for it.
void lose_rank0(int signal) {
  test::run_processes(
      2,
      [&](const Group& harness) {
        const int rank = harness.rank();
        const auto told = [&](auto make) {
          const auto number = torch::tensor({rank == 0 ? make() : 0});
          harness.broadcast(number).wait();
          return number.template item<int>();
        };
        const int rank0 = told(getpid);
        const int port = told(launch::free_port);
        const Group group = init(options_of(rank, port));
        const Group quick = group.subgroup({0, 1}, kTimeout);
        const Group used = group.subgroup({0, 1}, kTimeout);
        compressed_all_reduce(used, torch::ones({8}), "int8").wait();
        const Group others = group_of_others(rank, told(launch::free_port));
        const auto facts = [] { return std::vector<Fact>{}; };
        const auto theirs = others.impl().process_group;
        adopt(theirs, "before", facts);
        harness.barrier().wait();
        if (rank == 0) {
          while (true) {
            pause();
          }
        }
        kill(rank0, signal);
        expect_lost_in_time([&] { adopt(theirs, "attach", facts); }, "adopt");
        expect_lost_in_time(
            [&] {
              compressed_all_reduce(quick, torch::ones({8}), "int8").wait();
            },
            "the first compressed_all_reduce");
        expect_lost_in_time(
            [&] {
              compressed_all_reduce(used, torch::ones({8}), "int8").wait();
            },
            "compressed_all_reduce");
        auto again = options_of(rank, port);
        again.timeout = kTimeout;
        expect_lost_in_time([&] { init(again); }, "init");
        kill(rank0, SIGKILL);
      },
      {.may_die = {0}});
}

TEST(LostStoreProcesses, AStoppedServerIsNamedInTime) {
  lose_rank0(SIGSTOP);
}

TEST(LostStoreProcesses, AKilledServerIsNamedInTime) {
  lose_rank0(SIGKILL);
}

}  // namespace
}  // namespace gradwire
