#include "gradwire/comm/watchdog.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "gradwire/base/error.h"

namespace gradwire::watchdog {
namespace {

using Clock = Watched::Clock;

// Never destroyed: its thread may run until the process has ended.
struct Watch {
  std::mutex mutex;
  std::condition_variable changed;
  std::multimap<Clock::time_point, std::weak_ptr<Watched>> calls;
  bool started = false;
};

Watch& the_watch() {
  static auto* watch = new Watch;
  return *watch;
}

void call(const std::weak_ptr<Watched>& watched) {
  if (const auto alive = watched.lock()) {
    if (const auto next = alive->check_time(Clock::now())) {
      watch(alive, *next);
    }
  }
}

[[noreturn]] void serve(Watch& watch) {
  std::unique_lock lock(watch.mutex);
  while (true) {
    if (watch.calls.empty()) {
      watch.changed.wait(lock);
      continue;
    }
    const auto first = watch.calls.begin();
    if (Clock::now() < first->first) {
      watch.changed.wait_until(lock, Clock::time_point(first->first));
      continue;
    }
    const auto due = std::move(first->second);
    watch.calls.erase(first);
    lock.unlock();
    call(due);
    lock.lock();
  }
}

}  // namespace

void start() {
  Watch& watch = the_watch();
  const std::lock_guard lock(watch.mutex);
  if (watch.started) {
    return;
  }
  try {
    std::thread([&watch] { serve(watch); }).detach();
  } catch (const std::system_error& e) {
    fail("comm", "no thread to look at timeouts could be started: ", e.what());
  }
  watch.started = true;
}

void watch(std::weak_ptr<Watched> watched, Clock::time_point when) {
  Watch& watch = the_watch();
  const std::lock_guard lock(watch.mutex);
  watch.calls.emplace(when, std::move(watched));
  watch.changed.notify_one();
}

}  // namespace gradwire::watchdog
