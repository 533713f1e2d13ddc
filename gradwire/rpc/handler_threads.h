#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

namespace gradwire::rpc {

// Threads on which other workers' calls run. A handler may wait for a call of
// its own, so there is always another thread for the next job: one that is
// idle, or a new one. Idle threads end after a while. Thread safe.
class HandlerThreads {
 public:
  HandlerThreads();
  // As stop() without any patience.
  ~HandlerThreads();
  HandlerThreads(const HandlerThreads&) = delete;

  // Work is what shutdown waits for; upkeep is gradwire's own.
  enum class Kind { kWork, kUpkeep };

  // Returns at once. The job must not throw.
  void run(Kind kind, std::function<void()> job);

  // Work that has not ended yet, and all that ever began.
  std::size_t working() const;
  std::size_t started() const;

  // Whether the calling thread is one of some HandlerThreads.
  static bool is_handler_thread();

  // Waits for the jobs under way until `deadline`. Those that still run then
  // go on, on threads that nobody waits for.
  bool stop(std::chrono::steady_clock::time_point deadline);

 private:
  struct State;
  // Shared with the threads.
  std::shared_ptr<State> state_;
};

}  // namespace gradwire::rpc
