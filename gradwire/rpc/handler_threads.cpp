#include "gradwire/rpc/handler_threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

constexpr std::chrono::seconds kIdle{10};

thread_local bool is_handler = false;

void start_detached(std::function<void()> work) {
  std::thread(std::move(work)).detach();
}

}  // namespace

struct HandlerThreads::State {
  mutable std::mutex mutex;
  std::condition_variable work;
  std::condition_variable done;
  struct Job {
    Kind kind = Kind::kWork;
    std::function<void()> run = {};
  };
  std::deque<Job> waiting;
  std::size_t idle = 0;
  std::size_t busy = 0;
  std::size_t working = 0;
  std::size_t started = 0;
  bool stopping = false;

  void add(Kind kind, std::function<void()> run) {
    waiting.push_back({kind, std::move(run)});
    ++busy;
    working += kind == Kind::kWork;
    started += kind == Kind::kWork;
  }

  // As if the last job had never come.
  Job take_back() {
    Job job = std::move(waiting.back());
    waiting.pop_back();
    --busy;
    working -= job.kind == Kind::kWork;
    started -= job.kind == Kind::kWork;
    return job;
  }

  void run_all() {
    while (auto job = next()) {
      job->run();
      job->run = nullptr;
      finished(job->kind);
    }
  }

  // The next job; nothing when this thread is not needed any more.
  std::optional<Job> next() {
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

  void finished(Kind kind) {
    const std::lock_guard lock(mutex);
    working -= kind == Kind::kWork;
    if (--busy == 0) {
      done.notify_all();
    }
  }
};

HandlerThreads::HandlerThreads(StartThread start)
    : start_(start ? std::move(start) : start_detached),
      state_(std::make_shared<State>()) {}

HandlerThreads::~HandlerThreads() {
  stop(std::chrono::steady_clock::now());
}

void HandlerThreads::run(Kind kind, std::function<void()> job) {
  // Its end, which may call back, comes after that of the lock.
  State::Job unused;
  const std::lock_guard lock(state_->mutex);
  state_->add(kind, std::move(job));
  if (state_->idle >= state_->waiting.size()) {
    state_->work.notify_one();
    return;
  }
  try {
    start_([state = state_] {
      is_handler = true;
      state->run_all();
    });
  } catch (const std::system_error& e) {
    unused = state_->take_back();
    fail("rpc", "no thread can be started for a handler: ", e.what());
  }
}

bool HandlerThreads::is_handler_thread() {
  return is_handler;
}

std::size_t HandlerThreads::working() const {
  const std::lock_guard lock(state_->mutex);
  return state_->working;
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
