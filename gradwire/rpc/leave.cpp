// How a worker leaves the others.

#include <algorithm>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/rpc/agent_impl.h"
#include "gradwire/rpc/functions_impl.h"

namespace gradwire::rpc {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPoll{2};
// How often those that others wait for are asked whether they live, and how
// long they may take to answer.
constexpr milliseconds kAskEvery{500};
constexpr milliseconds kAskPatience{30'000};

}  // namespace

// Throws CommError when another worker is lost.
void Agent::check_alive(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  const auto patience = std::clamp(left, milliseconds(1), kAskPatience);
  std::vector<Reply<void>> replies;
  for (const auto& worker : workers_) {
    if (worker.id != rank_) {
      replies.push_back(call_own<void>(worker.id, patience, "ping"));
    }
  }
  for (const auto& reply : replies) {
    reply.wait();
  }
}

void Agent::wait_until_idle(Clock::time_point deadline) {
  auto asked = Clock::now();
  while (calls_->pending > 0 || threads_->working() > 0) {
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
    if (Clock::now() - asked > kAskEvery) {
      check_alive(deadline);
      asked = Clock::now();
    }
    std::this_thread::sleep_for(kPoll);
  }
}

void Agent::wait_for_leavers(
    const std::string& topic, Clock::time_point deadline) {
  auto asked = Clock::now();
  const auto late = rendezvous_.wait(topic, deadline, [&] {
    if (Clock::now() - asked > kAskEvery) {
      check_alive(deadline);
      asked = Clock::now();
    }
  });
  if (late.empty()) {
    return;
  }
  std::vector<std::string> names;
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

// A worker is idle when it neither waits for a call nor runs one. All are done
// when all were idle in two rounds with nothing started in between: a call that
// was under way in the first would have been answered or have started another
// by the second.
void Agent::leave_gracefully(Clock::time_point deadline) {
  std::vector<std::string> before;
  for (int round = 0;; ++round) {
    wait_until_idle(deadline);
    const std::string topic = concat("leave/", round);
    rendezvous_.leave(topic, concat(calls_->made + threads_->started()));
    wait_for_leavers(topic, deadline);
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
    keeper_.reset();
    // Torch then knows that pipes which close are no reason to warn.
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
    keeper_.reset();
    agent_->shutdown();
    if (torch::distributed::rpc::RpcAgent::isCurrentRpcAgentSet()) {
      torch::distributed::rpc::RpcAgent::setCurrentRpcAgent(nullptr);
    }
  } catch (const std::exception&) {
    // There is nobody left to tell.
  }
  // Handlers that wait for a call have got its error by now.
  if (!HandlerThreads::is_handler_thread()) {
    threads_->stop(Clock::now() + std::chrono::seconds(1));
  }
}

}  // namespace gradwire::rpc
