#pragma once

// Private to comm.

#include <chrono>
#include <memory>
#include <optional>

namespace gradwire {

// Something with deadlines.
class Watched {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Watched() = default;
  // Called in the watchdog's thread when it is time, or a little later. Returns
  // when to be called again, nothing for never.
  virtual std::optional<Clock::time_point> check_time(
      Clock::time_point now) = 0;
};

// The one thread of the process that looks at the time. Thread safe.
namespace watchdog {

// Starts the thread if it is not there yet. Throws Error when it cannot be.
void start();
// After start().
void watch(std::weak_ptr<Watched> watched, Watched::Clock::time_point when);

}  // namespace watchdog

}  // namespace gradwire
