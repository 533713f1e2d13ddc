#include "gradwire/rpc/handler_threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace gradwire::rpc {
namespace {

constexpr std::chrono::seconds kIdle{10};

}  // namespace

struct HandlerThreads::State {
  mutable std::mutex mutex;
  std::condition_variable work;
  std::condition_variable done;
  std::deque<std::function<void()>> waiting;
  std::size_t idle = 0;
  std::size_t busy = 0;
  std::size_t started = 0;
  bool stopping = false;

  // The next job; empty when this thread is not needed any more.
  std::function<void()> next() {
    std::unique_lock lock(mutex);
    ++idle;
    work.wait_for(lock, kIdle, [&] { return stopping || !waiting.empty(); });
    --idle;
    if (waiting.empty()) {
      return {};
    }
    auto job = std::move(waiting.front());
    waiting.pop_front();
    return job;
  }

  void finished() {
    const std::lock_guard lock(mutex);
    if (--busy == 0) {
      done.notify_all();
    }
  }
};

HandlerThreads::HandlerThreads() : state_(std::make_shared<State>()) {}

HandlerThreads::~HandlerThreads() {
  stop(std::chrono::steady_clock::now());
}

void HandlerThreads::run(std::function<void()> job) {
  const std::lock_guard lock(state_->mutex);
  state_->waiting.push_back(std::move(job));
  ++state_->busy;
  ++state_->started;
  if (state_->idle >= state_->waiting.size()) {
    state_->work.notify_one();
    return;
  }
  std::thread([state = state_] {
    while (auto job = state->next()) {
      job();
      job = nullptr;
      state->finished();
    }
  }).detach();
}

std::size_t HandlerThreads::busy() const {
  const std::lock_guard lock(state_->mutex);
  return state_->busy;
}

std::size_t HandlerThreads::started() const {
  const std::lock_guard lock(state_->mutex);
  return state_->started;
}

bool HandlerThreads::stop(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->work.notify_all();
  return state_->done.wait_until(
      lock, deadline, [&] { return state_->busy == 0; });
}

}  // namespace gradwire::rpc
