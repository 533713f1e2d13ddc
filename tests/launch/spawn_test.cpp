#include "gradwire/launch/spawn.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <thread>

#include "tests/support/expect.h"

namespace gradwire::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Captured {
  SpawnResult result;
  std::map<int, std::vector<std::string>> out;
  std::map<int, std::vector<std::string>> err;
};

Captured spawn(
    int nproc, const std::string& script, SpawnOptions options = {}) {
  Captured captured;
  options.command = {"/bin/sh", "-c", script};
  options.nproc = nproc;
  options.deadline = seconds(30);
  options.on_line = [&](int rank, Stream stream, std::string_view line) {
    auto& lines = stream == Stream::kOut ? captured.out : captured.err;
    lines[rank].emplace_back(line);
  };
  captured.result = spawn_ranks(options);
  return captured;
}

// Neither gone nor a zombie that nobody has reaped yet.
bool runs(pid_t pid) {
  std::ifstream stat(concat("/proc/", pid, "/stat"));
  std::string number, name, state;
  return stat >> number >> name >> state && state != "Z" && state != "X";
}

TEST(Spawn, RanksGetTorchrunsVariables) {
  const auto captured = spawn(
      3,
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR; "
      "echo port $MASTER_PORT >&2");
  EXPECT_EQ(captured.result.exit_code(), 0);
  EXPECT_EQ(captured.out.at(2), std::vector<std::string>{"2 3 2 3 127.0.0.1"});
  EXPECT_EQ(captured.err.at(0), captured.err.at(2));
}

TEST(Spawn, LinesArriveWholeAlsoTheLastOne) {
  const auto captured =
      spawn(1, "printf 'one\\ntw'; sleep 0.1; printf 'o\\nthree'");
  EXPECT_EQ(
      captured.out.at(0), (std::vector<std::string>{"one", "two", "three"}));
}

TEST(Spawn, AFailingRankEndsTheOthersAndIsNamed) {
  const auto started = std::chrono::steady_clock::now();
  const auto captured = spawn(3, "[ $RANK = 1 ] && exit 7; sleep 60");
  ASSERT_TRUE(captured.result.first_failure);
  EXPECT_EQ(
      to_string(*captured.result.first_failure), "rank 1 exited with code 7");
  EXPECT_EQ(captured.result.exit_code(), 7);
  EXPECT_TRUE(captured.result.ranks[0].told_to_end);
  EXPECT_LT(std::chrono::steady_clock::now() - started, seconds(20));
}

TEST(Spawn, ASignalIsNamed) {
  const auto captured = spawn(2, "[ $RANK = 0 ] && kill -KILL $$; sleep 60");
  ASSERT_TRUE(captured.result.first_failure);
  EXPECT_EQ(
      to_string(*captured.result.first_failure),
      "rank 0 was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(captured.result.exit_code(), 137);
}

TEST(Spawn, ARankThatIgnoresTermIsKilledAfterTheGrace) {
  const auto captured = spawn(
      2,
      "[ $RANK = 1 ] && { sleep 0.3; exit 3; }; trap '' TERM; "
      "while :; do sleep 1; done",
      {.grace = milliseconds(300)});
  EXPECT_EQ(captured.result.exit_code(), 3);
  EXPECT_EQ(captured.result.ranks[0].signal, SIGKILL);
}

TEST(Spawn, ChildrenOfRanksGoWithThem) {
  const auto captured = spawn(
      2,
      "sleep 61 & echo $!; [ $RANK = 1 ] && { sleep 0.3; exit 1; }; wait",
      {.grace = milliseconds(500)});
  for (const int rank : {0, 1}) {
    const pid_t pid = std::stoi(captured.out.at(rank).at(0));
    for (int i = 0; i < 100 && runs(pid); ++i) {
      std::this_thread::sleep_for(milliseconds(20));
    }
    EXPECT_FALSE(runs(pid)) << pid;
  }
}

TEST(Spawn, SignalsAreForwarded) {
  std::thread sender([] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);  // the launcher is to get it
    std::this_thread::sleep_for(milliseconds(500));
    kill(getpid(), SIGTERM);
  });
  const auto captured =
      spawn(2, "trap 'echo got it; exit 0' TERM; while :; do sleep 0.05; done");
  sender.join();
  EXPECT_EQ(captured.result.signal, SIGTERM);
  EXPECT_EQ(captured.result.exit_code(), 128 + SIGTERM);
  EXPECT_EQ(captured.out.at(0), std::vector<std::string>{"got it"});
  EXPECT_EQ(captured.out.at(1), std::vector<std::string>{"got it"});
}

TEST(Spawn, ARankThatNeverStopsWritingDoesNotBlockTheLauncher) {
  SpawnOptions options;
  options.command = {"/bin/sh", "-c", "while :; do echo y; done"};
  options.nproc = 2;
  options.deadline = seconds(1);
  options.grace = milliseconds(200);
  options.on_line = [](int, Stream, std::string_view) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  };
  const auto started = std::chrono::steady_clock::now();
  EXPECT_TRUE(spawn_ranks(options).deadline_passed);
  EXPECT_LT(std::chrono::steady_clock::now() - started, seconds(60));
}

TEST(Spawn, MuchOutputArrivesWhole) {
  const auto captured = spawn(1, "seq 1 50000");
  ASSERT_EQ(captured.out.at(0).size(), 50000u);
  EXPECT_EQ(captured.out.at(0).back(), "50000");
}

TEST(Spawn, BadInputIsAnError) {
  EXPECT_ERROR(Error, spawn_ranks({}), "no program");
  EXPECT_ERROR(
      Error,
      spawn_ranks({.command = {"true"}, .nproc = 0}),
      "nproc is 0, expected 1 to 256");
  EXPECT_ERROR(
      Error,
      spawn_ranks({.command = {"/no/such/program"}, .nproc = 2}),
      "cannot run '/no/such/program': No such file");
}

}  // namespace
}  // namespace gradwire::launch
