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

bool Agent::wait_until_idle(Clock::time_point deadline) {
  while (calls_->pending > 0 || threads_->busy() > 0) {
    if (Clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

// Throws CommError when one of them is lost.
void Agent::check_alive(const std::vector<int>& ranks) {
  std::vector<Reply<void>> replies;
  for (const int rank : ranks) {
    if (rank != rank_) {
      replies.push_back(call_own<void>(rank, kAskPatience, "ping"));
    }
  }
  for (const auto& reply : replies) {
    reply.wait();
  }
}

// A worker is idle when it neither waits for a call nor runs one. All are done
// when all were idle in two rounds with nothing started in between: a call that
// was under way in the first would have been answered or have started another
// by the second.
void Agent::leave_gracefully(std::optional<Clock::time_point> deadline) {
  std::vector<std::string> before;
  const auto last = deadline.value_or(Clock::time_point::max());
  for (int round = 0;; ++round) {
    if (!wait_until_idle(last)) {
      throw CommError(concat(
          "[gradwire.rpc] ",
          calls_->pending,
          " calls of worker '",
          self().name,
          "' and ",
          threads_->busy(),
          " of others on it were still under way at the end of "
          "shutdown_timeout"));
    }
    const std::string topic = concat("leave/", round);
    rendezvous_.leave(topic, concat(calls_->made + threads_->started()));
    auto asked = Clock::now();
    for (;;) {
      const auto missing = rendezvous_.missing(topic);
      if (missing.empty()) {
        break;
      }
      if (Clock::now() >= last) {
        std::vector<std::string> names;
        for (const int rank : missing) {
          names.push_back(workers_[static_cast<std::size_t>(rank)].name);
        }
        throw CommError(concat(
            "[gradwire.rpc] worker ",
            join(names),
            " did not shut down in time (worker '",
            self().name,
            "' waited)"));
      }
      if (Clock::now() - asked > kAskEvery) {
        check_alive(missing);
        asked = Clock::now();
      }
      std::this_thread::sleep_for(kPoll);
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
        patience ? std::optional(Clock::now() + *patience) : std::nullopt);
    // Torch then knows that pipes which close are no reason to warn.
    agent_->join(/*shutdown=*/true);
    // The store's host goes last.
    rendezvous_.leave("left", "");
    const auto deadline = Clock::now() + options_.shutdown_timeout;
    while (rank_ == 0 && !rendezvous_.missing("left").empty() &&
           Clock::now() < deadline) {
      std::this_thread::sleep_for(kPoll);
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

void Agent::force() {
  if (!agent_) {
    return;
  }
  keeper_.reset();
  agent_->shutdown();
  torch::distributed::rpc::RpcAgent::setCurrentRpcAgent(nullptr);
  // Handlers that wait for a call have got its error by now.
  threads_->stop(Clock::now() + std::chrono::seconds(1));
  agent_.reset();
}

}  // namespace gradwire::rpc
