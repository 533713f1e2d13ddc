#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::launch {

// The most ranks on one machine. A larger number is probably a typing error.
inline constexpr int kMostLocalRanks = 256;

enum class Stream { kOut, kErr };

struct SpawnOptions {
  std::vector<std::string> command = {};
  int nproc = 1;
  // Set on top of the inherited environment and of torchrun's variables.
  std::map<std::string, std::string> environment = {};
  // The same for one rank.
  std::function<std::map<std::string, std::string>(int rank)> environment_of =
      {};
  // Receives every line a rank writes, without its newline. If empty, ranks
  // inherit the output of this process.
  std::function<void(int rank, Stream, std::string_view line)> on_line = {};
  // Rank 0's standard output is this process's own even with on_line: for
  // programs that draw on a terminal.
  bool rank0_owns_stdout = false;
  // A rank that fails takes the others with it.
  bool end_others_on_failure = true;
  // From asking the other ranks to end (SIGTERM) to killing them (SIGKILL).
  std::chrono::milliseconds grace{5000};
  // All ranks are ended after this long; nullopt: never.
  std::optional<std::chrono::milliseconds> deadline = {};
};

// How one rank ended.
struct RankExit {
  int rank = 0;
  int code = 0;
  int signal = 0;
  // This rank was told to end because another one failed or a signal came.
  bool told_to_end = false;

  bool ok() const {
    return code == 0 && signal == 0;
  }
};

// "rank 1 was killed by signal 9 (SIGKILL)", "rank 1 exited with code 3".
std::string to_string(const RankExit& exit);

struct SpawnResult {
  std::vector<RankExit> ranks;
  // The rank whose failure ended the others.
  std::optional<RankExit> first_failure;
  // The signal this process was sent and forwarded, or 0.
  int signal = 0;
  bool deadline_passed = false;

  // What a launcher should exit with: 0, the failed rank's code, or 128 plus
  // the signal.
  int exit_code() const;
};

// Starts `nproc` local ranks with torchrun's variables and waits for all of
// them. When one fails the others are ended; SIGINT, SIGTERM and SIGHUP sent
// to this process are forwarded, a second one kills. Ranks die with this
// process, even if it is killed. Call from one thread at a time. Throws Error
// when the program cannot be started.
SpawnResult spawn_ranks(const SpawnOptions& options);

// The environment of one local rank: this process's own with torchrun's
// variables for a store at `host`:`port`.
std::map<std::string, std::string> rank_environment(
    int rank, int world, const std::string& host, int port);

// A TCP port that is free at the moment, and that no outgoing connection takes
// where the system keeps to the usual ports for these.
int free_port();

}  // namespace gradwire::launch
