// How a worker leaves the others.

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/rpc/agent_impl.h"

namespace gradwire::rpc {
namespace {

using std::chrono::milliseconds;

// The longest pause between two looks: at calls under way; at the store, where
// whoever comes last wakes the others.
constexpr milliseconds kIdlePause{20};
constexpr milliseconds kStorePause{1000};
// How long telling others of a loss may take.
constexpr milliseconds kHearWithin{1000};

}  // namespace

void Agent::hear_of(int worker, const std::optional<std::string>& failure) {
  if (worker < 0 || worker >= world_) {
    fail("rpc", "heard of worker ", worker, ", which does not exist");
  }
  if (failure) {
    leaving_.lose(worker, *failure);
  } else {
    leaving_.find(worker);
  }
}

// The replies say when they have heard. A worker that cannot be told looks by
// itself, or is lost, which its own neighbour notices.
template <class... Args>
std::vector<Reply<void>> Agent::tell_others(
    int but,
    milliseconds timeout,
    const std::string& function,
    const Args&... arguments) {
  std::vector<Reply<void>> replies;
  for (const auto& other : workers_) {
    if (other.id == rank_ || other.id == but) {
      continue;
    }
    try {
      replies.push_back(
          call_own<void>(other.id, timeout, function, arguments...));
    } catch (const std::exception&) {
    }
  }
  return replies;
}

void Agent::tell_all_of(int worker, const std::optional<std::string>& failure) {
  // This worker hears of it last. It may end at once, and a worker that has not
  // been told would take it for the one that is lost.
  for (auto& reply :
       tell_others(worker, kHearWithin, "hear_of", worker, failure)) {
    try {
      reply.wait();
    } catch (const std::exception&) {
    }
  }
  hear_of(worker, failure);
}

void Agent::wait_until_idle(Clock::time_point deadline) {
  for (milliseconds pause{1}; calls_->pending > 0 || threads_->working() > 0;
       pause = std::min(2 * pause, kIdlePause)) {
    if (Clock::now() >= deadline) {
      throw CommError(concat(
          "[gradwire.rpc] ",
          calls_->pending,
          " calls of worker '",
          self().name,
          "' and ",
          threads_->working(),
          " of others on it were still under way at the end of "
          "shutdown_timeout"));
    }
    leaving_.pause(pause);
  }
}

void Agent::wait_for_leavers(
    const std::string& topic, Clock::time_point deadline) {
  const auto pause = [&](milliseconds time) { leaving_.pause(time); };
  const auto late = rendezvous_.wait(topic, deadline, {kStorePause, pause});
  if (late.empty()) {
    return;
  }
  std::vector<std::string> names;
  names.reserve(late.size());
  for (const int rank : late) {
    names.push_back(workers_[static_cast<std::size_t>(rank)].name);
  }
  throw CommError(concat(
      "[gradwire.rpc] worker ",
      join(names),
      " did not shut down in time (worker '",
      self().name,
      "' waited)"));
}

// A worker is idle when it neither waits for a call nor runs one. All workers
// are done when all were idle in two successive rounds and no call began in
// between: a call that was on its way in the first round has been answered or
// has begun by the second.
void Agent::leave_gracefully(Clock::time_point deadline) {
  std::vector<std::string> before;
  for (int round = 0;; ++round) {
    wait_until_idle(deadline);
    const std::string topic = concat("leave/", round);
    if (rendezvous_.leave(topic, concat(calls_->made + threads_->started()))) {
      tell_others(rank_, options_.liveness, "wake");
    } else {
      wait_for_leavers(topic, deadline);
    }
    auto now = rendezvous_.read(topic);
    if (now == before) {
      return;
    }
    before = std::move(now);
  }
}

void Agent::leave(std::optional<milliseconds> patience) {
  std::exception_ptr failure;
  try {
    leave_gracefully(
        patience ? Clock::now() + *patience : Clock::time_point::max());
    watch_.reset();
    keeper_.reset();
    // Tells Torch not to warn about connections that close.
    agent_->join(/*shutdown=*/true);
    // The store's host goes last.
    rendezvous_.leave("left", "");
    if (rank_ == 0) {
      rendezvous_.wait("left", Clock::now() + options_.shutdown_timeout);
    }
  } catch (const Error&) {
    failure = std::current_exception();
  } catch (const std::exception& e) {
    failure = std::make_exception_ptr(CommError(concat(
        "[gradwire.rpc] a worker was lost while worker '",
        self().name,
        "' was leaving: ",
        e.what())));
  }
  force();
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void Agent::force() noexcept {
  const std::lock_guard lock(force_mutex_);
  if (!agent_ || std::exchange(forced_, true)) {
    return;
  }
  try {
    watch_.reset();
    keeper_.reset();
    agent_->shutdown();
    if (torch::distributed::rpc::RpcAgent::isCurrentRpcAgentSet()) {
      torch::distributed::rpc::RpcAgent::setCurrentRpcAgent(nullptr);
    }
  } catch (const std::exception&) {
    // The worker is gone either way.
  }
  // Handlers that waited for a call have its error by now and end.
  if (!HandlerThreads::is_handler_thread()) {
    threads_->stop(Clock::now() + std::chrono::seconds(1));
  }
}

}  // namespace gradwire::rpc
