#include "gradwire/rpc/lease_keeper.h"

#include <algorithm>
#include <utility>

#include "gradwire/rpc/agent_impl.h"
#include "gradwire/rpc/objects_impl.h"

namespace gradwire::rpc {
namespace {

// Nobody waits for the replies: an owner that is lost is noticed by those who
// call it.
void renew_holds(std::chrono::milliseconds timeout) {
  const auto agent = find_running_agent();
  if (!agent) {
    return;
  }
  for (const auto& [owner, holds] : holds_by_owner()) {
    if (owner != agent->self().id && !holds.empty()) {
      agent->call_own<void>(owner, timeout, "renew", holds);
    }
  }
}

}  // namespace

LeaseKeeper::LeaseKeeper(std::chrono::milliseconds lease)
    : lease_(lease), thread_([this] { run(); }) {}

LeaseKeeper::~LeaseKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void LeaseKeeper::run() {
  const auto period = std::max(lease_ / 6, std::chrono::milliseconds(1));
  auto before = ObjectTable::Clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [&] { return stopping_; })) {
    lock.unlock();
    const auto now = ObjectTable::Clock::now();
    // When this process was stopped itself, renewals wait to be heard.
    if (now - std::exchange(before, now) > 2 * period) {
      object_table().extend(now + hold_time(lease_));
    }
    for (auto& ended : object_table().reap(now)) {
      end_elsewhere(std::move(ended));
    }
    try {
      renew_holds(lease_);
    } catch (const std::exception&) {
      // The next time may go better; if not, the leases end.
    }
    lock.lock();
  }
}

}  // namespace gradwire::rpc
