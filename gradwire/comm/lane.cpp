#include "gradwire/comm/lane.h"

#include <pthread.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/process.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/comm/callback_scope.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/comm/profile.h"

namespace gradwire {
namespace {

// For debuggers and profilers; a name is at most this long.
constexpr std::size_t kThreadName = 15;

}  // namespace

struct Lane::State {
  struct Queued {
    std::shared_ptr<Job> job;
    // Who pays for what the job sends.
    std::shared_ptr<ByteMeter> ledger;
    // Who watches it, if anybody does.
    ProfiledPtr profiled;
  };

  struct Stage {
    Phase phase;
    // Used and dropped by the stage's thread alone.
    Groups groups;
    std::deque<Queued> queue;
    std::condition_variable ready;
    std::thread thread;
  };

  HomeProcess home;
  std::string label;
  int rank = 0;
  std::mutex mutex;
  std::deque<Stage> stages;
  // Jobs that have been submitted and have not ended.
  std::size_t active = 0;
  // Set once: the lane has failed.
  std::exception_ptr error;
  bool closing = false;

  void start_threads();
  void close();
  void fail_with(const std::exception_ptr& reason);
  // The next job; none when the lane has failed or is closing.
  std::optional<Queued> next(Stage& stage);
  // To the stage given; ends a job that has no step there.
  void push(std::size_t index, Queued queued);
  void serve(std::size_t index);
  // What went wrong, null if nothing did.
  std::exception_ptr run(const Queued& queued, std::size_t index);
  void abandon(Stage& stage, std::deque<Queued> left);
};

Future Lane::Result::begin(at::Tensor value, std::size_t jobs) {
  const std::lock_guard lock(mutex_);
  if (busy_) {
    gradwire::fail("comm", "a result of jobs under way cannot begin anew");
  }
  future_ = Future::make_raw();
  value_ = std::move(value);
  error_ = nullptr;
  jobs_ = jobs;
  refused_ = false;
  busy_ = true;
  return Future(future_);
}

void Lane::Result::set_value(at::Tensor value) {
  const std::lock_guard lock(mutex_);
  value_ = std::move(value);
}

void Lane::Result::refuse(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  error_ = error_ ? error_ : error;
  refused_ = true;
}

void Lane::Result::job_ended(const std::exception_ptr& error) {
  if (error) {
    const std::lock_guard lock(mutex_);
    error_ = error_ ? error_ : error;
  }
  if (--jobs_ > 0) {
    return;
  }
  // Whoever waits may begin anew as soon as the future is complete.
  const Future::Raw future = std::move(future_);
  at::Tensor value = std::move(value_);
  const std::exception_ptr failure = std::exchange(error_, nullptr);
  release();
  busy_ = false;
  const CallbackScope callbacks;
  if (failure) {
    future->setError(failure);
  } else {
    future->markCompleted(c10::IValue(std::move(value)));
  }
}

bool Lane::Job::has_pending() const {
  return std::ranges::any_of(
      pending_, [](const Future& future) { return !future.done(); });
}

void Lane::Job::wait_for_pending() {
  for (const Future& future : pending_) {
    future.wait();
  }
  pending_.clear();
}

void Lane::Job::end(const std::exception_ptr& error) {
  for (const Future& future : pending_) {
    try {
      future.wait();
    } catch (const std::exception&) {
      // The job has failed already.
    }
  }
  pending_.clear();
  std::exchange(result_, nullptr)->job_ended(error);
}

void Lane::State::fail_with(const std::exception_ptr& reason) {
  const std::lock_guard lock(mutex);
  if (!error) {
    error = reason;
  }
  for (Stage& stage : stages) {
    stage.ready.notify_all();
  }
}

std::optional<Lane::State::Queued> Lane::State::next(Stage& stage) {
  std::unique_lock lock(mutex);
  stage.ready.wait(
      lock, [&] { return !stage.queue.empty() || error || closing; });
  if (error || stage.queue.empty()) {
    return std::nullopt;
  }
  Queued first = std::move(stage.queue.front());
  stage.queue.pop_front();
  return first;
}

void Lane::State::push(std::size_t index, Queued queued) {
  std::exception_ptr reason;
  {
    const std::lock_guard lock(mutex);
    active += index == 0;
    const bool done = index == queued.job->steps().size();
    reason = done ? nullptr : error;
    if (!done && !reason) {
      stages[index].queue.push_back(std::move(queued));
      stages[index].ready.notify_one();
      return;
    }
    --active;
  }
  queued.job->end(reason);
}

void Lane::State::serve(std::size_t index) {
  const at::NoGradGuard no_grad;
  Stage& stage = stages[index];
  std::deque<Queued> left;
  while (auto queued = next(stage)) {
    if (const auto reason = run(*queued, index)) {
      fail_with(reason);
      left.push_back(std::move(*queued));
      break;
    }
    push(index + 1, std::move(*queued));
  }
  abandon(stage, std::move(left));
}

// A collective belongs to the step that submitted it, though it is the thread
// of the next one that waits for it.
std::exception_ptr Lane::State::run(const Queued& queued, std::size_t index) {
  const ByteScope scope(queued.ledger);
  Job& job = *queued.job;
  const auto steps = job.steps();
  std::size_t at = index;
  try {
    if (index > 0) {
      at = index - 1;
      job.wait_for_pending();
      at = index;
    }
    const ProfileRange range(queued.profiled, steps[index].name);
    (job.*steps[index].run)(stages[index].groups);
    return nullptr;
  } catch (...) {
    // A lane that failed is lost.
    return with_place<CommError>(
        std::current_exception(), {.rank = rank, .phase = steps[at].name});
  }
}

// Dropping connections waits for what is under way on them, so jobs that wait
// for nothing end before, and the others when that has ended.
void Lane::State::abandon(Stage& stage, std::deque<Queued> left) {
  std::exception_ptr reason;
  {
    const std::lock_guard lock(mutex);
    std::ranges::move(stage.queue, std::back_inserter(left));
    stage.queue.clear();
    active -= left.size();
    reason = error;
  }
  std::deque<Queued> waiting;
  for (Queued& queued : left) {
    if (queued.job->has_pending()) {
      waiting.push_back(std::move(queued));
    } else {
      queued.job->end(reason);
    }
  }
  left.clear();
  stage.groups.clear();
  for (const Queued& queued : waiting) {
    queued.job->end(reason);
  }
}

void Lane::State::start_threads() {
  for (std::size_t i = 0; i < stages.size(); ++i) {
    Stage& stage = stages[i];
    try {
      stage.thread = std::thread([this, i] { serve(i); });
    } catch (const std::system_error& e) {
      close();
      throw Error(
          concat(
              "[gradwire.comm] lane '",
              label,
              "' cannot start a thread: ",
              e.what()),
          {.rank = rank});
    }
    pthread_setname_np(
        stage.thread.native_handle(),
        stage.phase.name.substr(0, kThreadName).c_str());
  }
}

void Lane::State::close() {
  {
    const std::lock_guard lock(mutex);
    closing = true;
    if (active > 0 && !error) {
      error = std::make_exception_ptr(CommError(
          concat(
              "[gradwire.comm] lane '",
              label,
              "' was closed before its work was done"),
          {.rank = rank}));
    }
    for (Stage& stage : stages) {
      stage.ready.notify_all();
    }
  }
  for (Stage& stage : stages) {
    if (stage.thread.joinable()) {
      stage.thread.join();
    }
  }
}

Lane::Lane(
    const Group& group, const std::string& label, std::vector<Phase> phases)
    : state_(std::make_unique<State>()) {
  agree(group, "a lane", {{"its label", label}});
  state_->label = label;
  state_->rank = group.rank();
  for (Phase& phase : phases) {
    auto& stage = state_->stages.emplace_back();
    for (int i = 0; i < phase.groups; ++i) {
      stage.groups.push_back(duplicate_counted(group, "lane"));
    }
    stage.phase = std::move(phase);
  }
  state_->start_threads();
}

Lane::~Lane() {
  if (!state_->home.is_here()) {
    static_cast<void>(state_.release());
    return;
  }
  state_->close();
}

Future Lane::submit(std::shared_ptr<Job> job, at::Tensor value) {
  auto result = std::make_shared<Result>();
  Future future = result->begin(std::move(value));
  submit(std::move(job), std::move(result));
  return future;
}

void Lane::submit(std::shared_ptr<Job> job, std::shared_ptr<Result> result) {
  if (!state_->home.is_here()) {
    throw Error(
        concat(
            "[gradwire.comm] lane '",
            state_->label,
            "' was made before this process was forked: only the parent can "
            "use it"),
        {.rank = state_->rank});
  }
  if (job->steps().size() > state_->stages.size()) {
    gradwire::fail(
        "comm",
        "lane '",
        state_->label,
        "' got a job of ",
        job->steps().size(),
        " steps, expected at most ",
        state_->stages.size());
  }
  job->result_ = std::move(result);
  state_->push(
      0, {std::move(job), ByteScope::current(), profiled_here(state_->label)});
}

void Lane::fail(const std::exception_ptr& error) {
  const auto reason = with_place<CommError>(error, {.rank = state_->rank});
  state_->fail_with(reason);
  std::rethrow_exception(reason);
}

bool Lane::is_own_thread() const {
  return std::ranges::any_of(state_->stages, [](const auto& stage) {
    return stage.thread.get_id() == std::this_thread::get_id();
  });
}

}  // namespace gradwire
