#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

namespace gradwire::rpc {

// The threads on which other workers' calls run. A handler may wait for a call
// that it makes itself, so every job gets a thread at once: an idle one or a
// new one. Idle threads end after a while. Thread safe.
class HandlerThreads {
 public:
  // Runs a function on a new detached thread. Throws std::system_error when the
  // system has no thread left.
  using StartThread = std::function<void(std::function<void()>)>;

  // `start` is for tests; null: threads of the system.
  explicit HandlerThreads(StartThread start = {});
  // As stop() without any patience.
  ~HandlerThreads();
  HandlerThreads(const HandlerThreads&) = delete;

  // Work is what shutdown waits for; upkeep is gradwire's own.
  enum class Kind { kWork, kUpkeep };

  // Returns at once. The job must not throw. Throws Error, and the job is gone
  // without having run, when no thread is idle and none can be started.
  void run(Kind kind, std::function<void()> job);

  // How many jobs of kind kWork have not ended yet, and how many there have
  // ever been.
  std::size_t working() const;
  std::size_t started() const;

  // Whether the calling thread is one of some HandlerThreads.
  static bool is_handler_thread();

  // Waits until `deadline` for the jobs that are running, and returns whether
  // all have ended. The others go on in the background.
  bool stop(std::chrono::steady_clock::time_point deadline);

 private:
  struct State;
  StartThread start_;
  // Shared with the threads.
  std::shared_ptr<State> state_;
};

}  // namespace gradwire::rpc
