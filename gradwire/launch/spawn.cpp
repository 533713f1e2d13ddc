#include "gradwire/launch/spawn.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "gradwire/base/error.h"
#include "gradwire/launch/child.h"

namespace gradwire::launch {
namespace {

using Clock = std::chrono::steady_clock;

// Cuts what a rank writes into lines.
class LineReader {
 public:
  LineReader(int rank, Stream stream, Fd fd)
      : rank_(rank), stream_(stream), fd_(std::move(fd)) {
    fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
  }

  int fd() const {
    return fd_.get();
  }

  // Reads a part of what is there, so that a rank that never stops writing does
  // not keep the launcher busy. Closes at the end of the stream.
  template <class OnLine>
  void pump(const OnLine& on_line) {
    std::array<char, 16384> chunk;
    const auto count = read(fd_.get(), chunk.data(), chunk.size());
    if (count < 0) {
      return;  // EAGAIN: nothing for now
    }
    if (count == 0) {
      fd_.reset();
      finish(on_line);
      return;
    }
    pending_.append(chunk.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end;
         (end = pending_.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      on_line(
          rank_,
          stream_,
          std::string_view(pending_).substr(begin, end - begin));
    }
    pending_.erase(0, begin);
  }

  template <class OnLine>
  void finish(const OnLine& on_line) {
    if (!pending_.empty()) {
      on_line(rank_, stream_, pending_);
      pending_.clear();
    }
  }

 private:
  int rank_;
  Stream stream_;
  Fd fd_;
  std::string pending_;
};

// While alive, the signals a launcher forwards arrive on a descriptor.
class SignalInbox {
 public:
  SignalInbox() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      sigaddset(&wanted, number);
    }
    pthread_sigmask(SIG_BLOCK, &wanted, &before_);
    fd_ = Fd(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~SignalInbox() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalInbox(const SignalInbox&) = delete;

  int fd() const {
    return fd_.get();
  }
  // The next signal, 0 when there is none.
  int take() {
    signalfd_siginfo info;
    const auto count = read(fd_.get(), &info, sizeof info);
    return count == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_;
  Fd fd_;
};

struct Rank {
  pid_t pid = 0;
  Fd pidfd;
  bool running = true;
};

class Spawner {
 public:
  explicit Spawner(const SpawnOptions& options) : options_(options) {}

  // Nothing outlives a run that failed: neither ranks nor their children.
  ~Spawner() {
    for (const auto& rank : ranks_) {
      if (rank.running || ending()) {
        kill(-rank.pid, SIGKILL);
      }
      if (rank.running) {
        waitpid(rank.pid, nullptr, 0);
      }
    }
  }

  SpawnResult run() {
    const int port = free_port();
    for (int rank = 0; rank < options_.nproc; ++rank) {
      start(rank, port);
    }
    if (options_.deadline) {
      deadline_ = Clock::now() + *options_.deadline;
    }
    while (running() > 0) {
      wait_for_events();
      forward_signals();
      pump();
      reap();
      enforce_deadlines();
    }
    drain();
    return std::move(result_);
  }

 private:
  void start(int rank, int port) {
    ChildOptions child;
    child.command = options_.command;
    child.environment =
        rank_environment(rank, options_.nproc, "127.0.0.1", port);
    auto more = options_.environment;
    if (options_.environment_of) {
      more.merge(options_.environment_of(rank));
    }
    for (const auto& [name, value] : more) {
      child.environment[name] = value;
    }
    std::vector<Pipe> pipes;
    pipes.reserve(2);
    const auto capture = [&](Stream stream) {
      auto& pipe = pipes.emplace_back();
      readers_.emplace_back(rank, stream, std::move(pipe.read));
      return pipe.write.get();
    };
    if (options_.on_line) {
      if (rank != 0 || !options_.rank0_owns_stdout) {
        child.out = capture(Stream::kOut);
      }
      child.err = capture(Stream::kErr);
    }
    Rank& started = ranks_.emplace_back();
    try {
      started.pid = start_child(child);
    } catch (...) {
      ranks_.pop_back();
      throw;
    }
    started.pidfd =
        Fd(static_cast<int>(syscall(SYS_pidfd_open, started.pid, 0)));
    result_.ranks.push_back({.rank = rank});
  }

  long running() const {
    return std::ranges::count(ranks_, true, &Rank::running);
  }

  void wait_for_events() {
    std::vector<pollfd> fds{{inbox_.fd(), POLLIN, 0}};
    for (const auto& reader : readers_) {
      if (reader.fd() >= 0) {
        fds.push_back({reader.fd(), POLLIN, 0});
      }
    }
    for (const auto& rank : ranks_) {
      if (rank.running) {
        fds.push_back({rank.pidfd.get(), POLLIN, 0});
      }
    }
    poll(fds.data(), fds.size(), 200);
  }

  void forward_signals() {
    while (const int number = inbox_.take()) {
      const bool again = result_.signal != 0;
      result_.signal = number;
      end_others(again ? SIGKILL : number);
    }
  }

  void pump() {
    for (auto& reader : readers_) {
      if (reader.fd() >= 0) {
        reader.pump(options_.on_line);
      }
    }
  }

  // Reads what the ranks left in their pipes, at most what a pipe holds.
  // Children of ranks may live on and keep a pipe open: they are not waited
  // for.
  void drain() {
    constexpr int kChunksInAPipe = 20;
    for (int i = 0; i < kChunksInAPipe; ++i) {
      pump();
    }
    for (auto& reader : readers_) {
      reader.finish(options_.on_line);
    }
  }

  void reap() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      int status = 0;
      if (!ranks_[i].running || waitpid(ranks_[i].pid, &status, WNOHANG) <= 0) {
        continue;
      }
      ranks_[i].running = false;
      RankExit& exit = result_.ranks[i];
      exit.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
      exit.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      if (!exit.ok() && !ending() && !result_.first_failure) {
        result_.first_failure = exit;
        if (options_.end_others_on_failure) {
          end_others(SIGTERM);
        }
      }
    }
  }

  bool ending() const {
    return kill_at_.has_value();
  }

  void end_others(int number) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].running) {
        result_.ranks[i].told_to_end = true;
        kill(-ranks_[i].pid, number);
      }
    }
    if (!kill_at_) {
      kill_at_ = Clock::now() + options_.grace;
    }
  }

  void enforce_deadlines() {
    const auto now = Clock::now();
    if (deadline_ && now > *deadline_) {
      deadline_.reset();
      result_.deadline_passed = true;
      end_others(SIGTERM);
    }
    if (kill_at_ && now > *kill_at_) {
      end_others(SIGKILL);
    }
  }

  const SpawnOptions& options_;
  SignalInbox inbox_;
  std::vector<Rank> ranks_;
  std::vector<LineReader> readers_;
  SpawnResult result_;
  std::optional<Clock::time_point> deadline_;
  std::optional<Clock::time_point> kill_at_;
};

bool is_free(int port) {
  const Fd probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe) {
    fail("launch", "no socket to look for a port: ", error_text(errno));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  return bind(probe.get(), raw, sizeof address) == 0;
}

}  // namespace

std::string to_string(const RankExit& exit) {
  if (exit.signal != 0) {
    const char* name = sigabbrev_np(exit.signal);
    return concat(
        "rank ",
        exit.rank,
        " was killed by signal ",
        exit.signal,
        " (SIG",
        name ? name : "?",
        ")");
  }
  return concat("rank ", exit.rank, " exited with code ", exit.code);
}

int SpawnResult::exit_code() const {
  if (first_failure) {
    return first_failure->signal ? 128 + first_failure->signal
                                 : first_failure->code;
  }
  if (signal != 0) {
    return 128 + signal;
  }
  return deadline_passed ? 1 : 0;
}

SpawnResult spawn_ranks(const SpawnOptions& options) {
  if (options.command.empty()) {
    fail("launch", "no program to run was given");
  }
  if (options.nproc < 1 || options.nproc > kMostLocalRanks) {
    fail(
        "launch",
        "nproc is ",
        options.nproc,
        ", expected 1 to ",
        kMostLocalRanks);
  }
  return Spawner(options).run();
}

std::map<std::string, std::string> rank_environment(
    int rank, int world, const std::string& host, int port) {
  auto environment = inherited_environment();
  // Left over from an outer torchrun, it would point at another store.
  environment.erase("TORCHELASTIC_USE_AGENT_STORE");
  environment.erase("TORCHELASTIC_RESTART_COUNT");
  const auto set = [&](const char* name, const auto& value) {
    environment[name] = concat(value);
  };
  set("RANK", rank);
  set("LOCAL_RANK", rank);
  set("GROUP_RANK", 0);
  set("WORLD_SIZE", world);
  set("LOCAL_WORLD_SIZE", world);
  set("MASTER_ADDR", host);
  set("MASTER_PORT", port);
  if (world > 1) {
    environment.emplace("OMP_NUM_THREADS", "1");
  }
  return environment;
}

int free_port() {
  // Below the ports that a system gives to outgoing connections: one of those
  // could take it before it is used.
  constexpr int kFirst = 20000;
  constexpr int kLast = 32000;
  constexpr int kTries = 100;
  std::random_device random;
  std::uniform_int_distribution<int> any(kFirst, kLast);
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const int port = any(random);
    if (is_free(port)) {
      return port;
    }
  }
  fail(
      "launch",
      "no free TCP port: got ",
      kTries,
      " that are in use between ",
      kFirst,
      " and ",
      kLast);
}

}  // namespace gradwire::launch
