#include "gradwire/comm/init.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <filesystem>
#include <thread>

#include "gradwire/launch/spawn.h"
#include "tests/support/expect.h"
#include "tests/support/no_threads.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using std::chrono::seconds;

// Ranks as threads that meet by options rather than by environment.
template <class MakeOptions>
void meet(int world, const MakeOptions& make_options) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      InitOptions options = make_options(rank);
      options.rank = rank;
      options.world = world;
      options.timeout = seconds(20);
      const Group group = init(options);
      EXPECT_EQ(group.rank(), rank);
      EXPECT_EQ(group.size(), world);
      const auto sum = group.all_reduce(torch::ones({1})).wait();
      EXPECT_EQ(sum.item<int>(), world);
      group.barrier().wait();
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
}

TEST(Init, AloneWithoutALauncher) {
  const Group group = init();
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.all_reduce(torch::ones({3})).wait().sum().item<float>(), 3);
}

TEST(Init, MeetsOverTcp) {
  const int port = launch::free_port();
  meet(3, [&](int) { return InitOptions{.host = "127.0.0.1", .port = port}; });
}

TEST(Init, MeetsThroughAFile) {
  const std::string file = std::filesystem::temp_directory_path() /
                           ("gradwire-init-" + std::to_string(getpid()));
  meet(2, [&](int) { return InitOptions{.file = file}; });
}

TEST(Init, UsesTheInterfaceItIsTold) {
  const int port = launch::free_port();
  meet(2, [&](int) {
    return InitOptions{.host = "127.0.0.1", .port = port, .interface = "lo"};
  });
}

TEST(Init, CanBeCalledAgain) {
  const int port = launch::free_port();
  for (int turn = 0; turn < 2; ++turn) {
    meet(
        2, [&](int) { return InitOptions{.host = "127.0.0.1", .port = port}; });
  }
}

TEST(Init, BadOptions) {
  EXPECT_ERROR(Error, init({.rank = 0}), "only one of rank and world");
  EXPECT_ERROR(
      Error, init({.rank = 2, .world = 2}), "rank 2 of 2", "0 <= rank < world");
  EXPECT_ERROR(
      Error,
      init({.rank = 0, .world = 2}),
      "said no address to meet at",
      "MASTER_ADDR");
  EXPECT_ERROR(
      Error,
      init({.rank = 0, .world = 2, .host = "127.0.0.1", .port = 70000}),
      "port 70000");
  EXPECT_ERROR(
      Error,
      init({.timeout = std::chrono::milliseconds(0)}),
      "timeout of 0 ms, expected more than 0");
}

TEST(Init, AMissingRankIsNamedWithinTheTimeout) {
  const auto started = std::chrono::steady_clock::now();
  EXPECT_ERROR(
      CommError,
      init(
          {.rank = 0,
           .world = 2,
           .host = "127.0.0.1",
           .port = launch::free_port(),
           .timeout = seconds(1)}),
      "init: rank 1 did not arrive within 1 s");
  EXPECT_LT(std::chrono::steady_clock::now() - started, seconds(15));
}

TEST(Init, AMissingServerIsNamedWithinTheTimeout) {
  EXPECT_ERROR(
      CommError,
      init(
          {.rank = 1,
           .world = 2,
           .host = "127.0.0.1",
           .port = launch::free_port(),
           .timeout = seconds(1)}),
      "rank 1 of 2 cannot reach the store at 127.0.0.1:");
}

TEST(Init, DifferentWorldsAreAnErrorOnEveryRank) {
  const int port = launch::free_port();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      EXPECT_ERROR(
          Error,
          init(
              {.rank = rank,
               .world = rank == 0 ? 2 : 3,
               .host = "127.0.0.1",
               .port = port,
               .timeout = seconds(20)}),
          "ranks do not agree on init: world is '2' on rank 0 but '3' on rank "
          "1");
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
}

// A peer of another version, which is played by what it says in the store.
TEST(Init, DifferentVersionsAreAnError) {
  const int port = launch::free_port();
  std::thread peer([&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    const auto tcp = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    c10d::Store& store = *tcp;
    const std::string end(1, '\x1f');
    store.set(
        "gradwire/1/init/1/text",
        "the call" + end + "init" + end + "version of gradwire" + end + "0.0" +
            end);
    store.set("gradwire/1/init/1/print", std::string("1"));
    store.wait({"gradwire/1/init/0/left"});
    store.set("gradwire/1/init/1/left", std::string());
  });
  EXPECT_ERROR(
      Error,
      init(
          {.rank = 0,
           .world = 2,
           .host = "127.0.0.1",
           .port = port,
           .timeout = seconds(20)}),
      "ranks do not agree on init: version of gradwire is '",
      "' on rank 0 but '0.0' on rank 1");
  peer.join();
}

#ifdef GRADWIRE_TEST_NO_THREADS
TEST(Init, AThreadThatCannotBeStartedIsAnError) {
  const test::NoThreads no_threads;
  EXPECT_ERROR(
      Error,
      init(
          {.rank = 0,
           .world = 1,
           .host = "127.0.0.1",
           .port = launch::free_port()}),
      "no thread for the store could be started");
}

// In a process that has not used it yet.
TEST(InitProcesses, TransportLocalWithoutAThreadIsAnError) {
  test::run_processes(1, [](const Group&) {
    const test::NoThreads no_threads;
    EXPECT_ERROR(
        Error,
        init({.rank = 0, .world = 1, .transport = "local"}),
        "no thread to look at timeouts could be started");
  });
}
#endif

TEST(Init, AnUnknownTransportIsRefused) {
  EXPECT_ERROR(
      Error,
      init({.transport = "locale"}),
      "there is no transport 'locale', expected one of gloo, local",
      "did you mean 'local'?");
}

TEST(Init, TransportLocalIsForThreadsOfOneProcess) {
  const int port = launch::free_port();
  meet(4, [&](int) {
    return InitOptions{.host = "127.0.0.1", .port = port, .transport = "local"};
  });
}

TEST(InitProcesses, TransportLocalIsRefusedAmongProcesses) {
  test::run_processes(2, [](const Group& harness) {
    auto port = torch::tensor({harness.rank() == 0 ? launch::free_port() : 0});
    harness.broadcast(port).wait();
    const auto meet = [&] {
      return init(
          {.rank = harness.rank(),
           .world = 2,
           .host = "127.0.0.1",
           .port = port.item<int>(),
           .timeout = seconds(20),
           .transport = "local"});
    };
    EXPECT_ERROR(
        Error, meet(), "ranks do not agree on init: process of the ranks is");
    harness.barrier().wait();
  });
}

TEST(InitProcesses, UnderstandsTheEnvironment) {
  const std::string file = std::filesystem::temp_directory_path() /
                           ("gradwire-init-env-" + std::to_string(getppid()));
  test::run_processes(2, [&](const Group& harness) {
    setenv("OMPI_COMM_WORLD_RANK", harness.rank() ? "1" : "0", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    // No address: ranks of one machine meet through a file of the job's.
    setenv("PMIX_SERVER_URI2", file.c_str(), 1);
    setenv("GRADWIRE_TIMEOUT_S", "20", 1);
    const Group group = init();
    EXPECT_EQ(group.rank(), harness.rank());
    EXPECT_EQ(group.timeout(), seconds(20));
    EXPECT_EQ(group.all_reduce(torch::ones({1})).wait().item<float>(), 2);
    group.barrier().wait();
  });
}

}  // namespace
}  // namespace gradwire
