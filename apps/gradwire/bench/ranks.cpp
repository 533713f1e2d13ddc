#include "apps/gradwire/bench/ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/gradwire/bench/bench.h"
#include "gradwire/base/error.h"
#include "gradwire/launch/spawn.h"

namespace gradwire::apps {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{100};
constexpr milliseconds kGrace{5000};
constexpr std::size_t kMostErrorBytes = 4096;

// Appends what is there to read; false at the end of the stream.
bool read_some(const Fd& fd, std::string& into) {
  std::array<char, 16384> chunk;
  const auto count = read(fd.get(), chunk.data(), chunk.size());
  if (count > 0) {
    into.append(chunk.data(), static_cast<std::size_t>(count));
  }
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

// "running", "stopped"...: tells the rank that hangs from those that wait.
std::string state_of(pid_t pid) {
  std::ifstream status(concat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    const auto open = line.find('(');
    if (line.starts_with("State:") && open != std::string::npos) {
      return line.substr(open + 1, line.find(')') - open - 1);
    }
  }
  return "gone";
}

// The most useful line: errors of Python and of gradwire are the last one.
std::string last_line(const std::string& text) {
  const auto end = text.find_last_not_of("\n ");
  if (end == std::string::npos) {
    return "no message";
  }
  const auto begin = text.rfind('\n', end);
  return text.substr(
      begin == std::string::npos ? 0 : begin + 1,
      end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

}  // namespace

RankSet::RankSet(std::string name, const std::vector<RankProgram>& programs)
    : name_(std::move(name)) {
  // A rank that is gone is noticed when it is asked, not by a signal.
  signal(SIGPIPE, SIG_IGN);
  try {
    for (const auto& program : programs) {
      launch::Pipe in;
      launch::Pipe out;
      launch::Pipe err;
      const pid_t pid = launch::start_child(
          {.command = program.command,
           .environment = program.environment,
           .in = in.read.get(),
           .out = out.write.get(),
           .err = err.write.get()});
      auto& rank = ranks_.emplace_back();
      rank.pid = pid;
      rank.in = std::move(in.write);
      rank.out = std::move(out.read);
      rank.err = std::move(err.read);
      fcntl(rank.out.get(), F_SETFL, O_NONBLOCK);
      fcntl(rank.err.get(), F_SETFL, O_NONBLOCK);
    }
  } catch (...) {
    kill_all();
    throw;
  }
}

RankSet::~RankSet() {
  go_on();
  for (auto& rank : ranks_) {
    rank.in.reset();
  }
  const auto deadline = Clock::now() + kGrace;
  for (auto& rank : ranks_) {
    while (!rank.ended && Clock::now() < deadline) {
      rank.ended = waitpid(rank.pid, &rank.status, WNOHANG) != 0;
      if (!rank.ended) {
        std::this_thread::sleep_for(milliseconds(10));
      }
    }
  }
  kill_all();
}

void RankSet::signal_all(int signal) {
  for (const auto& rank : ranks_) {
    if (!rank.ended) {
      kill(-rank.pid, signal);
    }
  }
}

void RankSet::stop() {
  signal_all(SIGSTOP);
}

void RankSet::go_on() {
  signal_all(SIGCONT);
}

void RankSet::kill_all() {
  for (auto& rank : ranks_) {
    if (!rank.ended) {
      kill(-rank.pid, SIGKILL);
      waitpid(rank.pid, &rank.status, 0);
      rank.ended = true;
    }
  }
}

std::vector<json> RankSet::ask(
    const std::string& command, milliseconds timeout) {
  const std::string line = command + "\n";
  for (const auto& rank : ranks_) {
    // Shorter than a pipe's buffer; a rank that is gone is found below.
    [[maybe_unused]] const auto sent =
        write(rank.in.get(), line.data(), line.size());
  }
  std::vector<json> answers(ranks_.size());
  const auto deadline = Clock::now() + timeout;
  while (true) {
    std::vector<std::string> missing;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (answers[i].is_null() && !take_answer(ranks_[i], answers[i])) {
        missing.push_back(concat(i, " (", state_of(ranks_[i].pid), ")"));
      }
    }
    if (missing.empty()) {
      return answers;
    }
    check_alive();
    if (Clock::now() > deadline) {
      kill_all();
      throw CommError(concat(
          "[gradwire.app] ",
          name_,
          "'s rank ",
          join(missing, ", rank "),
          " did not answer '",
          command,
          "' within ",
          static_cast<double>(timeout.count()) / 1e3,
          " s"));
    }
    pump(kPoll);
  }
}

bool RankSet::take_answer(Rank& rank, json& answer) {
  for (std::size_t end; (end = rank.pending.find('\n')) != std::string::npos;) {
    const std::string line = rank.pending.substr(0, end);
    rank.pending.erase(0, end + 1);
    if (line.starts_with(kBenchAnswer)) {
      answer = json::parse(line.substr(std::string(kBenchAnswer).size()));
      return true;
    }
  }
  return false;
}

void RankSet::pump(milliseconds wait) {
  std::vector<pollfd> fds;
  for (const auto& rank : ranks_) {
    for (const auto* fd : {&rank.out, &rank.err}) {
      if (*fd) {
        fds.push_back({fd->get(), POLLIN, 0});
      }
    }
  }
  poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
  for (auto& rank : ranks_) {
    if (rank.out && !read_some(rank.out, rank.pending)) {
      rank.out.reset();
    }
    if (rank.err && !read_some(rank.err, rank.errors)) {
      rank.err.reset();
    }
    if (rank.errors.size() > kMostErrorBytes) {
      rank.errors.erase(0, rank.errors.size() - kMostErrorBytes);
    }
  }
}

void RankSet::check_alive() {
  // When a rank is killed, the others end with errors of their own: name the
  // one that was killed.
  const Rank* first = nullptr;
  for (auto& rank : ranks_) {
    if (rank.ended || waitpid(rank.pid, &rank.status, WNOHANG) <= 0) {
      continue;
    }
    rank.ended = true;
    if (first == nullptr || WIFSIGNALED(rank.status)) {
      first = &rank;
    }
  }
  if (first == nullptr) {
    return;
  }
  pump(milliseconds(0));
  const launch::RankExit exit{
      .rank = static_cast<int>(first - ranks_.data()),
      .code = WIFEXITED(first->status) ? WEXITSTATUS(first->status) : 0,
      .signal = WIFSIGNALED(first->status) ? WTERMSIG(first->status) : 0};
  kill_all();
  throw CommError(concat(
      "[gradwire.app] ",
      name_,
      "'s ",
      to_string(exit),
      first->errors.empty() && exit.signal != 0
          ? ""
          : ": " + last_line(first->errors)));
}

}  // namespace gradwire::apps
