#include "gradwire/comm/local_room.h"

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/comm/aside.h"
#include "gradwire/comm/callback_scope.h"
#include "gradwire/comm/transport.h"

namespace gradwire {
namespace {

using Calls = std::vector<LocalCall>;

Future::Raw make_list_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
}

// All ranks get the same text: they have made a mistake together.
std::exception_ptr disagreement(
    const std::string& group, const std::string& what) {
  return std::make_exception_ptr(Error(concat(
      "[gradwire.comm] ranks do not agree on a collective of group '",
      group,
      "': ",
      what)));
}

}  // namespace

LocalRoom::LocalRoom(
    std::string group, int world, std::chrono::milliseconds timeout)
    : group_(std::move(group)),
      timeout_(timeout),
      next_(static_cast<std::size_t>(world)) {}

Future LocalRoom::submit(int rank, LocalCall call) {
  const auto place = static_cast<std::size_t>(rank);
  Future::Raw future = make_list_future();
  std::optional<Meeting> complete;
  std::optional<Clock::time_point> watch_at;
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) {
      return Future::failed(failure(name_of(call.kind), rank, lost_));
    }
    const auto index = static_cast<std::size_t>(next_[place]++ - first_);
    if (index == meetings_.size()) {
      meetings_.push_back(
          {std::vector<std::optional<LocalCall>>(next_.size()),
           std::vector<Future::Raw>(next_.size()),
           0,
           Clock::now() + timeout_});
    }
    Meeting& meeting = meetings_[index];
    meeting.calls[place] = std::move(call);
    meeting.futures[place] = future;
    // A rank comes to one meeting after another, so the first one is complete
    // first.
    if (++meeting.arrived == world()) {
      complete = std::move(meetings_.front());
      meetings_.pop_front();
      ++first_;
    } else if (!watched_) {
      watched_ = true;
      watch_at = meeting.deadline;
    }
  }
  if (complete) {
    finish(std::move(*complete));
  } else if (watch_at) {
    watchdog::watch(weak_from_this(), *watch_at);
  }
  return Future(std::move(future));
}

void LocalRoom::finish(Meeting meeting) const {
  Calls calls;
  for (auto& call : meeting.calls) {
    calls.push_back(std::move(*call));
  }
  std::exception_ptr error;
  std::vector<std::vector<at::Tensor>> results;
  try {
    const std::string different = difference(calls);
    if (different.empty()) {
      results = perform(calls);
    } else {
      error = disagreement(group_, different);
    }
  } catch (const std::exception& e) {
    error = disagreement(group_, first_line(e.what()));
  }
  const CallbackScope callbacks;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    if (error) {
      meeting.futures[rank]->setError(error);
    } else {
      meeting.futures[rank]->markCompleted(std::move(results[rank]));
    }
  }
}

void LocalRoom::leave(int rank) {
  std::vector<Failure> failures;
  {
    const std::lock_guard lock(mutex_);
    failures = lose(concat("rank ", rank, " has left the group"));
  }
  complete_all(failures);
}

std::optional<Watched::Clock::time_point> LocalRoom::check_time(
    Clock::time_point now) {
  std::vector<Failure> failures;
  {
    const std::lock_guard lock(mutex_);
    if (meetings_.empty()) {
      watched_ = false;
      return std::nullopt;
    }
    const Meeting& first = meetings_.front();
    if (now < first.deadline) {
      return first.deadline;
    }
    watched_ = false;
    failures = lose(missing(first));
  }
  // Callbacks may take long, and others wait for the watchdog.
  run_aside([failures = std::move(failures)] { complete_all(failures); });
  return std::nullopt;
}

std::string LocalRoom::missing(const Meeting& meeting) const {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < meeting.calls.size(); ++rank) {
    if (!meeting.calls[rank]) {
      ranks.push_back(rank);
    }
  }
  return concat(
      ranks.size() == 1 ? "rank " : "ranks ",
      join(ranks),
      " did not come within ",
      static_cast<double>(timeout_.count()) / 1000.0,
      " s");
}

// With the lock.
std::vector<LocalRoom::Failure> LocalRoom::lose(const std::string& why) {
  if (lost_.empty()) {
    lost_ = why;
  }
  std::vector<Failure> failures;
  for (auto& meeting : meetings_) {
    for (int rank = 0; rank < world(); ++rank) {
      const auto place = static_cast<std::size_t>(rank);
      if (meeting.calls[place]) {
        failures.push_back(
            {meeting.futures[place],
             failure(name_of(meeting.calls[place]->kind), rank, lost_)});
      }
    }
  }
  meetings_.clear();
  return failures;
}

void LocalRoom::complete_all(const std::vector<Failure>& failures) {
  const CallbackScope callbacks;
  for (const auto& [future, error] : failures) {
    future->setError(error);
  }
}

std::exception_ptr LocalRoom::failure(
    const char* operation, int rank, const std::string& why) const {
  return collective_failure({group_, rank, world()}, operation, why);
}

}  // namespace gradwire
