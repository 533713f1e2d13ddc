#pragma once

// Private to comm: where ranks that are threads of one process meet.

#include <deque>
#include <exception>
#include <mutex>
#include <optional>

#include "gradwire/comm/local_call.h"
#include "gradwire/comm/watchdog.h"

namespace gradwire {

// The shared memory of one group. A rank leaves what it brings to a collective
// and goes on; the last one to arrive does the work and completes the futures
// of all. Collectives pair up by their order on each rank.
//
// After a rank has left or was too late, everything under way and everything
// that is submitted later fails with a CommError. Thread safe.
class LocalRoom final : public Watched,
                        public std::enable_shared_from_this<LocalRoom> {
 public:
  LocalRoom(std::string group, int world, std::chrono::milliseconds timeout);

  int world() const {
    return static_cast<int>(next_.size());
  }

  std::chrono::milliseconds timeout() const {
    return timeout_;
  }

  // The future holds a list of tensors; see LocalCall. Each rank from one
  // thread at a time.
  Future submit(int rank, LocalCall call);
  // The rank submits nothing more.
  void leave(int rank);

  std::optional<Clock::time_point> check_time(Clock::time_point now) override;

 private:
  // One collective that not all ranks have come to.
  struct Meeting {
    std::vector<std::optional<LocalCall>> calls;
    std::vector<Future::Raw> futures;
    int arrived = 0;
    Clock::time_point deadline;
  };
  // Futures to be completed without the lock.
  struct Failure {
    Future::Raw future;
    std::exception_ptr error;
  };

  std::vector<Failure> lose(const std::string& why);
  static void complete_all(const std::vector<Failure>& failures);
  std::exception_ptr failure(
      const char* operation, int rank, const std::string& why) const;
  void finish(Meeting meeting) const;
  std::string missing(const Meeting& meeting) const;

  std::string group_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::deque<Meeting> meetings_;
  // The number of the first meeting, and of the next one of each rank.
  std::int64_t first_ = 0;
  std::vector<std::int64_t> next_;
  // Why nothing works any more, "" if it does.
  std::string lost_;
  // The watchdog will ask for the time.
  bool watched_ = false;
};

}  // namespace gradwire
