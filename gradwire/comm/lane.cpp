#include "gradwire/comm/lane.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

struct Queued {
  std::shared_ptr<Lane::Job> job;
  // Who pays for what the job sends.
  std::shared_ptr<ByteMeter> ledger;
};

// The same, as a CommError: a lane that failed is lost.
std::exception_ptr at_phase(
    const std::exception_ptr& error, const std::string& phase, int rank) {
  const std::string place = concat(" (phase ", phase, ", rank ", rank, ")");
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return std::make_exception_ptr(CommError(e.what() + place));
  } catch (...) {
    return std::make_exception_ptr(
        CommError("[gradwire.comm] something unknown was thrown" + place));
  }
}

}  // namespace

struct Lane::State {
  struct Stage {
    Phase phase;
    // Used and dropped by the stage's thread alone.
    Groups groups;
    std::deque<Queued> queue;
    std::condition_variable ready;
    std::thread thread;
  };

  std::string label;
  int rank = 0;
  std::mutex mutex;
  std::deque<Stage> stages;
  // Jobs that have been submitted and have neither ended nor failed.
  std::size_t active = 0;
  // Set once: the lane has failed.
  std::exception_ptr error;
  bool closing = false;

  void fail_with(const std::exception_ptr& reason);
  // The next job; none when the lane has failed or is closing.
  std::optional<Queued> next(Stage& stage);
  // To the stage given, past the last one: done.
  void push(std::size_t index, Queued queued);
  void serve(std::size_t index);
  // What went wrong, null if nothing did.
  std::exception_ptr run(const Queued& queued, std::size_t index);
  void abandon(Stage& stage);
};

void Lane::State::fail_with(const std::exception_ptr& reason) {
  const std::lock_guard lock(mutex);
  if (!error) {
    error = reason;
  }
  for (Stage& stage : stages) {
    stage.ready.notify_all();
  }
}

std::optional<Queued> Lane::State::next(Stage& stage) {
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
    const bool done = index == stages.size();
    reason = done ? nullptr : error;
    if (done || reason) {
      --active;
    } else {
      stages[index].queue.push_back(queued);
      stages[index].ready.notify_one();
    }
  }
  if (reason) {
    queued.job->fail(reason);
  }
}

void Lane::State::serve(std::size_t index) {
  const at::NoGradGuard no_grad;
  Stage& stage = stages[index];
  while (auto queued = next(stage)) {
    if (const auto reason = run(*queued, index)) {
      fail_with(reason);
      queued->job->fail(reason);
      break;
    }
    push(index + 1, std::move(*queued));
  }
  abandon(stage);
}

// A collective belongs to the phase that submitted it, though it is the next
// one that waits for it.
std::exception_ptr Lane::State::run(const Queued& queued, std::size_t index) {
  const ByteScope scope(queued.ledger);
  std::size_t phase = index;
  try {
    if (index > 0) {
      phase = index - 1;
      queued.job->wait();
      phase = index;
    }
    queued.job->run(index, stages[index].groups);
    return nullptr;
  } catch (...) {
    return at_phase(std::current_exception(), stages[phase].phase.name, rank);
  }
}

// Jobs first: dropping connections waits for what is under way on them.
void Lane::State::abandon(Stage& stage) {
  std::deque<Queued> left;
  std::exception_ptr reason;
  {
    const std::lock_guard lock(mutex);
    left.swap(stage.queue);
    reason = error;
  }
  for (const Queued& queued : left) {
    queued.job->fail(reason);
  }
  stage.groups.clear();
}

Lane::Lane(
    const Group& group, const std::string& label, std::vector<Phase> phases)
    : state_(std::make_unique<State>()) {
  state_->label = label;
  state_->rank = group.rank();
  for (Phase& phase : phases) {
    auto& stage = state_->stages.emplace_back();
    for (int i = 0; i < phase.groups; ++i) {
      stage.groups.push_back(duplicate_counted(group, "lane"));
    }
    stage.phase = std::move(phase);
  }
  for (std::size_t i = 0; i < state_->stages.size(); ++i) {
    state_->stages[i].thread =
        std::thread([state = state_.get(), i] { state->serve(i); });
  }
}

Lane::~Lane() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closing = true;
    if (state_->active > 0 && !state_->error) {
      state_->error = std::make_exception_ptr(CommError(concat(
          "[gradwire.comm] lane '",
          state_->label,
          "' was closed before its work was done (rank ",
          state_->rank,
          ")")));
    }
    for (auto& stage : state_->stages) {
      stage.ready.notify_all();
    }
  }
  for (auto& stage : state_->stages) {
    stage.thread.join();
  }
}

void Lane::submit(std::shared_ptr<Job> job) {
  state_->push(0, {std::move(job), ByteScope::current()});
}

void Lane::fail(const std::exception_ptr& error) {
  const auto reason =
      at_phase(error, state_->stages.front().phase.name, state_->rank);
  state_->fail_with(reason);
  std::rethrow_exception(reason);
}

bool Lane::is_own_thread() const {
  return std::ranges::any_of(state_->stages, [](const auto& stage) {
    return stage.thread.get_id() == std::this_thread::get_id();
  });
}

}  // namespace gradwire
