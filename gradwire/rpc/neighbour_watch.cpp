#include "gradwire/rpc/neighbour_watch.h"

#include <string>

#include "gradwire/rpc/agent_impl.h"

namespace gradwire::rpc {
namespace {

constexpr std::chrono::milliseconds kAskEvery{500};

}  // namespace

NeighbourWatch::NeighbourWatch(Agent& agent)
    : agent_(agent), thread_([this] { run(); }) {}

NeighbourWatch::~NeighbourWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void NeighbourWatch::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kAskEvery, [&] { return stopping_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

void NeighbourWatch::look() {
  if (reply_ && !reply_->done()) {
    return;
  }
  const int next =
      (agent_.self().id + 1) % static_cast<int>(agent_.workers().size());
  bool answered = false;
  std::optional<std::string> failure;
  try {
    if (reply_) {
      reply_->wait();
      answered = true;
    }
    reply_ = agent_.call_own<void>(next, agent_.options().liveness, "ping");
  } catch (const std::exception& e) {
    reply_.reset();
    failure = e.what();
  }
  if (failure ? !lost_ : answered && lost_) {
    lost_ = failure.has_value();
    agent_.tell_all_of(next, failure);
  }
}

}  // namespace gradwire::rpc
