#include "gradwire/comm/roll_call.h"

#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/comm/aside.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/comm/roll_call_impl.h"
#include "gradwire/comm/shared_store_impl.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLongest{5000};
constexpr Milliseconds kBetweenLooks{20};

std::string to_text(const std::vector<int>& missing) {
  if (missing.empty()) {
    return "";
  }
  const bool one = missing.size() == 1;
  return concat(
      one ? "rank " : "ranks ",
      join(missing),
      one ? " does not answer" : " do not answer");
}

// Without the room's tag, for the middle of a text.
std::string untagged(const std::string& text) {
  const auto end = text.starts_with("[gradwire.") ? text.find("] ") : 0;
  return end == 0 || end == std::string::npos ? text : text.substr(end + 2);
}

}  // namespace

RollBook::RollBook(const StorePtr& store, Origin origin, Milliseconds timeout)
    : patience_(std::min<Milliseconds>(timeout / 4, kLongest)),
      store_(share_store(store, "rank 0", patience_)),
      origin_(std::move(origin)) {}

std::string RollBook::key(const std::string& name, int rank) const {
  return concat("here/", name, "/", rank);
}

void RollBook::say_here(const std::string& name) const {
  store_->set(key(name, origin_.rank), std::vector<std::uint8_t>{1});
}

std::string RollBook::who_is_missing(const std::string& name) const {
  try {
    return look(name);
  } catch (const std::exception& e) {
    return untagged(first_line(e.what()));
  }
}

std::string RollBook::look(const std::string& name) const {
  const auto until = Clock::now() + patience_;
  say_here(name);
  std::vector<int> missing(static_cast<std::size_t>(origin_.world));
  std::iota(missing.begin(), missing.end(), 0);
  while (true) {
    std::erase_if(
        missing, [&](int rank) { return store_->check({key(name, rank)}); });
    if (missing.empty() || Clock::now() >= until) {
      return to_text(missing);
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

struct RollCall::State {
  explicit State(const Group& group)
      : book(group.impl().store, group.impl().origin, group.timeout()) {}

  std::string next() {
    return concat(failures++);
  }

  RollBook book;
  // All ranks count alike: failures that a group survives are those that all
  // ranks have seen.
  std::atomic<int> failures{0};
  // Those that ask together, until there is an answer.
  std::mutex mutex;
  bool asked = false;
  std::optional<std::string> answer;
  std::vector<Tell> waiting;
};

RollCall::RollCall(const Group& group)
    : state_(std::make_shared<State>(group)) {}

RollCall::~RollCall() = default;

void RollCall::answer() {
  run_aside([state = state_, name = state_->next()] {
    try {
      state->book.say_here(name);
    } catch (const std::exception&) {
      // Nobody is there to hear it; the error itself matters more.
    }
  });
}

void RollCall::ask(Tell tell) {
  run_aside([state = state_, name = state_->next(), tell = std::move(tell)] {
    tell(state->book.who_is_missing(name));
  });
}

void RollCall::ask_together(Tell tell) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.answer) {
    lock.unlock();
    tell(*state.answer);
    return;
  }
  state.waiting.push_back(std::move(tell));
  if (std::exchange(state.asked, true)) {
    return;
  }
  lock.unlock();
  ask([kept = state_](const std::string& missing) {
    std::unique_lock told(kept->mutex);
    kept->answer = missing;
    const auto all = std::exchange(kept->waiting, {});
    told.unlock();
    for (const Tell& each : all) {
      each(missing);
    }
  });
}

Future RollCall::named(const Future& collective) {
  auto result = Future::make_raw();
  collective.on_done([call = *this, result](const Future& done) mutable {
    const auto error = done.error();
    if (!error) {
      result->markCompleted(done.wait());
      return;
    }
    if (!is_comm_error(error)) {
      result->setError(error);
      return;
    }
    call.ask_together([error, result](const std::string& missing) {
      result->setError(with_place<CommError>(error, {.peer = missing}));
    });
  });
  return Future(result);
}

}  // namespace gradwire
