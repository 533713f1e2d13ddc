#include <unistd.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <ranges>
#include <system_error>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/sigpipe.h"
#include "gradwire/comm/shared_store_impl.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Value = std::vector<std::uint8_t>;
using Keys = std::vector<std::string>;

// Opening has a timeout of Torch's, which says more when it passes.
constexpr Milliseconds kMoreToOpen{2000};
constexpr Milliseconds kMostToClose{1000};
constexpr std::chrono::microseconds kFirstPause{50};
constexpr std::chrono::microseconds kLongestPause{20'000};

// An answer did not come in time.
struct SilentStore : CommError {
  using CommError::CommError;
};

double to_seconds(Milliseconds time) {
  return static_cast<double>(time.count()) / 1000.0;
}

// One connection. Operations run one after another on a thread of its own: one
// that is never answered keeps only that thread, whoever asked goes on when its
// time is up.
class StoreLine {
 public:
  StoreLine(std::function<StorePtr()> open, std::string server)
      : state_(std::make_shared<State>()) {
    state_->open = std::move(open);
    state_->server = std::move(server);
    const SigpipeBlocked no_sigpipe;
    try {
      std::thread([state = state_] { serve(*state); }).detach();
    } catch (const std::system_error& e) {
      fail("comm", "no thread for the store could be started: ", e.what());
    }
  }

  // A connection that waits for an answer closes when there is one.
  ~StoreLine() {
    if (state_->process != getpid()) {
      // The thread is not in this fork, and without memory nothing is left.
      // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
      new std::shared_ptr<State>(state_);
      return;
    }
    std::unique_lock lock(state_->mutex);
    state_->closing = true;
    state_->changed.notify_all();
    state_->changed.wait_for(
        lock, kMostToClose, [this] { return state_->closed; });
  }
  StoreLine(const StoreLine&) = delete;

  // What `operation(store)` returns; it must own what it uses.
  template <class Operation>
  auto ask(Operation operation, Milliseconds most) {
    using Result = std::invoke_result_t<Operation, c10d::Store&>;
    const auto answer = std::make_shared<std::promise<Result>>();
    auto result = answer->get_future();
    const auto job = std::make_shared<Job>();
    job->run = [answer, operation = std::move(operation)](c10d::Store& store) {
      answer->set_value(operation(store));
    };
    job->fail = [answer](const std::exception_ptr& error) {
      answer->set_exception(error);
    };
    push(job);
    if (result.wait_for(most) != std::future_status::ready) {
      job->given_up = true;
      throw SilentStore(concat(
          "[gradwire.comm] the store, which ",
          state_->server,
          " serves, did not answer within ",
          to_seconds(most),
          " s"));
    }
    try {
      return result.get();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      throw CommError(concat(
          "[gradwire.comm] the store, which ",
          state_->server,
          " serves, is lost: ",
          first_line(e.what())));
    }
  }

 private:
  struct Job {
    std::function<void(c10d::Store&)> run;
    std::function<void(const std::exception_ptr&)> fail;
    std::atomic<bool> given_up{false};
  };
  // The thread has it as long as it runs.
  struct State {
    std::function<StorePtr()> open;
    std::string server;
    const pid_t process = getpid();
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<Job>> jobs;
    bool closing = false;
    bool closed = false;
  };

  void push(std::shared_ptr<Job> job) {
    const std::lock_guard lock(state_->mutex);
    state_->jobs.push_back(std::move(job));
    state_->changed.notify_all();
  }

  static std::shared_ptr<Job> next(State& state) {
    std::unique_lock lock(state.mutex);
    state.changed.wait(
        lock, [&] { return state.closing || !state.jobs.empty(); });
    if (state.closing) {
      return nullptr;
    }
    auto job = std::move(state.jobs.front());
    state.jobs.pop_front();
    return job;
  }

  static void serve(State& state) {
    StorePtr store;
    std::exception_ptr not_open;
    try {
      store = state.open();
    } catch (...) {
      not_open = std::current_exception();
    }
    state.open = nullptr;
    while (const auto job = next(state)) {
      if (job->given_up) {
        continue;
      }
      try {
        not_open ? job->fail(not_open) : job->run(*store);
      } catch (...) {
        job->fail(std::current_exception());
      }
    }
    store.reset();
    const std::lock_guard lock(state.mutex);
    state.closed = true;
    state.changed.notify_all();
  }

  std::shared_ptr<State> state_;
};

class SharedStore final : public c10d::Store {
  template <class Operation>
  auto ask(Operation operation) {
    return memory_ ? operation(*memory_)
                   : line_->ask(std::move(operation), timeout_);
  }

 public:
  SharedStore(std::shared_ptr<StoreLine> line, Milliseconds timeout)
      : Store(timeout), line_(std::move(line)) {}
  SharedStore(c10::intrusive_ptr<c10d::HashStore> memory, Milliseconds timeout)
      : Store(timeout), memory_(std::move(memory)) {}

  StorePtr clone() override {
    return memory_ ? c10::make_intrusive<SharedStore>(memory_, timeout_)
                   : c10::make_intrusive<SharedStore>(line_, timeout_);
  }

  using Store::set;
  void set(const std::string& key, const Value& value) override {
    ask([key, value](c10d::Store& store) {
      store.set(key, value);
      return true;
    });
  }

  using Store::compareSet;
  Value compareSet(
      const std::string& key,
      const Value& expected,
      const Value& desired) override {
    return ask([key, expected, desired](c10d::Store& store) {
      return store.compareSet(key, expected, desired);
    });
  }

  // Not before it is there: a store that waits keeps others from being asked.
  Value get(const std::string& key) override {
    wait({key});
    return ask([key](c10d::Store& store) { return store.get(key); });
  }

  std::int64_t add(const std::string& key, std::int64_t value) override {
    return ask(
        [key, value](c10d::Store& store) { return store.add(key, value); });
  }

  bool deleteKey(const std::string& key) override {
    return ask([key](c10d::Store& store) { return store.deleteKey(key); });
  }

  bool check(const Keys& keys) override {
    return ask([keys](c10d::Store& store) { return store.check(keys); });
  }

  std::int64_t getNumKeys() override {
    return ask([](c10d::Store& store) { return store.getNumKeys(); });
  }

  void wait(const Keys& keys) override {
    wait(keys, timeout_);
  }

  void wait(const Keys& keys, const Milliseconds& timeout) override {
    if (!has_within(keys, timeout)) {
      throw CommError(concat(
          "[gradwire.comm] no rank has set ",
          join(keys),
          " in the store within ",
          to_seconds(timeout),
          " s"));
    }
  }

 private:
  bool has_within(const Keys& keys, const Milliseconds& timeout) {
    if (!memory_) {
      return wait_for_keys(*this, keys, Clock::now() + timeout);
    }
    try {
      memory_->wait(keys, timeout);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  // One of the two: memory of this process answers at once.
  std::shared_ptr<StoreLine> line_;
  c10::intrusive_ptr<c10d::HashStore> memory_;
};

// Reads what a PrefixStore keeps to itself.
struct PrefixReader : c10d::PrefixStore {
  static const std::string& prefix(const c10d::PrefixStore& store) {
    return store.*(&PrefixReader::prefix_);
  }
};

// The lines to stores of others in this process.
class Lines {
 public:
  std::shared_ptr<StoreLine> find(
      const StorePtr& store, const std::string& server) {
    const std::lock_guard lock(mutex_);
    std::erase_if(
        known_, [](const Known& known) { return known.line.expired(); });
    for (const Known& known : known_) {
      auto line = known.line.lock();
      if (line && known.store.lock() == store) {
        return line;
      }
    }
    auto line =
        std::make_shared<StoreLine>([store] { return store->clone(); }, server);
    known_.push_back({c10::weak_intrusive_ptr<c10d::Store>(store), line});
    return line;
  }

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10d::Store> store;
    std::weak_ptr<StoreLine> line;
  };

  std::mutex mutex_;
  std::vector<Known> known_;
};

// Never destroyed: threads may share stores until the process has ended.
Lines& lines() {
  static auto* all = new Lines;
  return *all;
}

}  // namespace

StorePtr open_shared_store(
    const std::function<StorePtr()>& open,
    const std::string& server,
    Milliseconds timeout,
    const std::function<CommError(const std::string& why)>& unreachable) {
  const auto line = std::make_shared<StoreLine>(
      [=] {
        try {
          return open();
        } catch (const std::exception& e) {
          throw unreachable(first_line(e.what()));
        }
      },
      server);
  try {
    line->ask([](c10d::Store&) { return true; }, timeout + kMoreToOpen);
  } catch (const SilentStore&) {
    throw unreachable("it does not answer");
  }
  return c10::make_intrusive<SharedStore>(line, timeout);
}

StorePtr share_store(
    const StorePtr& store, const std::string& server, Milliseconds timeout) {
  std::vector<std::string> prefixes;
  StorePtr base = store;
  while (auto* wrapped = dynamic_cast<c10d::PrefixStore*>(base.get())) {
    prefixes.push_back(PrefixReader::prefix(*wrapped));
    base = wrapped->getUnderlyingStore();
  }
  StorePtr shared;
  // Not by Torch's cast of pointers, which loses a reference when it fails.
  if (auto* memory = dynamic_cast<c10d::HashStore*>(base.get())) {
    shared = c10::make_intrusive<SharedStore>(
        c10::intrusive_ptr<c10d::HashStore>::reclaim_copy(memory), timeout);
  } else if (dynamic_cast<SharedStore*>(base.get()) != nullptr) {
    shared = base->clone();
    shared->setTimeout(timeout);
  } else {
    shared =
        c10::make_intrusive<SharedStore>(lines().find(base, server), timeout);
  }
  for (auto& prefix : std::views::reverse(prefixes)) {
    shared = c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(shared));
  }
  return shared;
}

bool wait_for_keys(
    c10d::Store& store, const Keys& keys, Clock::time_point until) {
  std::chrono::microseconds pause = kFirstPause;
  while (!store.check(keys)) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        until - Clock::now());
    if (left.count() <= 0) {
      return false;
    }
    std::this_thread::sleep_for(std::min(pause, left));
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

}  // namespace gradwire
