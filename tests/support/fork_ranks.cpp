#include "tests/support/fork_ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/base/fd.h"

namespace gradwire::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kGrace{2};

// Between tests and the template, as bytes.
struct Request {
  int n;
  std::array<char, 512> test;
  std::array<char, 2048> environment;  // "NAME=value\n" each
  std::array<char, 64> rank_variable;
  std::array<char, 256> folder;
};
// First of every rank that it runs, then of every rank that it has ended.
struct Notice {
  int rank;
  pid_t pid;
  bool ended;
  int status;
};

Fd& template_socket() {
  static Fd socket;
  return socket;
}

template <std::size_t N>
void put(std::array<char, N>& into, const std::string& text) {
  if (text.size() >= N) {
    fail("test", "'", text, "' is too long to tell ranks");
  }
  into.fill('\0');
  std::ranges::copy(text, into.begin());
}

std::string output_file(const std::string& folder, int rank) {
  return concat(folder, "/rank", rank);
}

// In a fork of the template: becomes the rank and ends with it.
[[noreturn]] void run_as_rank(const Request& request, int rank) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  const auto file = output_file(request.folder.data(), rank);
  const int out = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  close(out);
  // A test of init() must not find torchrun's variables of the harness.
  for (const char* name :
       {"RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT"}) {
    unsetenv(name);
  }
  setenv(request.rank_variable.data(), concat(rank).c_str(), 1);
  std::istringstream environment(request.environment.data());
  for (std::string name, value; std::getline(environment, name, '=') &&
                                std::getline(environment, value);) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  GTEST_FLAG_SET(filter, request.test.data());
  GTEST_FLAG_SET(output, "");
  std::exit(RUN_ALL_TESTS());
}

void notify(int socket, const Notice& notice) {
  if (send(socket, &notice, sizeof notice, MSG_NOSIGNAL) < 0) {
    _exit(1);  // nobody is there to hear it
  }
}

// Forks ranks whenever it is asked to, until the tests have ended.
[[noreturn]] void be_template(int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Request request;
  while (recv(socket, &request, sizeof request, 0) == sizeof request) {
    std::vector<pid_t> pids;
    for (int rank = 0; rank < request.n; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        close(socket);
        run_as_rank(request, rank);
      }
      pids.push_back(pid);
      notify(socket, {rank, pid, false, 0});
    }
    for (int left = request.n; left > 0; --left) {
      int status = 0;
      const pid_t pid = wait(&status);
      const auto rank = std::ranges::find(pids, pid) - pids.begin();
      notify(socket, {static_cast<int>(rank), pid, true, status});
    }
  }
  _exit(0);
}

// One call of fork_ranks.
class Run {
 public:
  explicit Run(const ForkOptions& options)
      : options_(options),
        pids_(static_cast<std::size_t>(options.n)),
        result_{
            .ranks = std::vector<launch::RankExit>(pids_.size()),
            .output = std::vector<std::string>(pids_.size())} {
    for (int rank = 0; rank < options.n; ++rank) {
      result_.ranks[static_cast<std::size_t>(rank)].rank = rank;
    }
  }

  ForkResult wait() {
    const auto deadline = Clock::now() + options_.deadline;
    while (ended_ < options_.n) {
      auto until = deadline;
      if (kill_at_) {
        until = std::min(until, *kill_at_);
      }
      if (const auto notice = next(until)) {
        take(*notice);
      } else if (Clock::now() >= deadline) {
        result_.deadline_passed = true;
        end_all(SIGKILL);
      } else {
        end_all(SIGKILL);
        kill_at_.reset();
      }
    }
    return std::move(result_);
  }

 private:
  static std::optional<Notice> next(Clock::time_point until) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    pollfd socket{template_socket().get(), POLLIN, 0};
    // Once the deadline has passed everybody is being killed.
    const int wait = static_cast<int>(std::max<std::int64_t>(left.count(), 20));
    if (poll(&socket, 1, wait) == 0) {
      return std::nullopt;
    }
    Notice notice;
    if (recv(socket.fd, &notice, sizeof notice, 0) != sizeof notice) {
      fail("test", "the process that ranks are forked from has ended");
    }
    return notice;
  }

  void take(const Notice& notice) {
    const auto rank = static_cast<std::size_t>(notice.rank);
    if (!notice.ended) {
      pids_[rank] = notice.pid;
      return;
    }
    ++ended_;
    kill(-notice.pid, SIGKILL);  // what it started
    pids_[rank] = 0;
    auto& exit = result_.ranks[rank];
    exit.code = WIFEXITED(notice.status) ? WEXITSTATUS(notice.status) : 0;
    exit.signal = WIFSIGNALED(notice.status) ? WTERMSIG(notice.status) : 0;
    exit.told_to_end = ending_;
    if (!exit.ok() && options_.end_others_on_failure && !ending_) {
      ending_ = true;
      kill_at_ = Clock::now() + kGrace;
      end_all(SIGTERM);
    }
  }

  void end_all(int signal) const {
    for (const pid_t pid : pids_) {
      if (pid > 0) {
        kill(pid, signal);
      }
    }
  }

  const ForkOptions& options_;
  std::vector<pid_t> pids_;
  ForkResult result_;
  int ended_ = 0;
  bool ending_ = false;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace

void start_template() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail("test", "no socket for the process that ranks are forked from");
  }
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) {
    fail("test", "cannot fork the process that ranks are forked from");
  }
  close(ends[pid == 0 ? 0 : 1]);
  if (pid == 0) {
    be_template(ends[1]);
  }
  template_socket() = Fd(ends[0]);
}

ForkResult fork_ranks(const ForkOptions& options) {
  auto pattern =
      (std::filesystem::temp_directory_path() / "gradwire-ranks-XXXXXX")
          .string();
  if (mkdtemp(pattern.data()) == nullptr) {
    fail("test", "cannot make a folder for what ranks print");
  }
  Request request{};
  request.n = options.n;
  put(request.test, options.test);
  put(request.rank_variable, options.rank_variable);
  put(request.folder, pattern);
  std::string environment;
  for (const auto& [name, value] : options.environment) {
    environment += concat(name, "=", value, "\n");
  }
  put(request.environment, environment);
  if (send(template_socket().get(), &request, sizeof request, MSG_NOSIGNAL) <
      0) {
    fail("test", "the process that ranks are forked from has ended");
  }
  auto result = Run(options).wait();
  for (int rank = 0; rank < options.n; ++rank) {
    std::ifstream file(output_file(pattern, rank));
    result.output[static_cast<std::size_t>(rank)].assign(
        std::istreambuf_iterator<char>(file), {});
  }
  std::filesystem::remove_all(pattern);
  return result;
}

}  // namespace gradwire::test
