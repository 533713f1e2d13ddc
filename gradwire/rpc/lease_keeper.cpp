#include "gradwire/rpc/lease_keeper.h"

#include <algorithm>
#include <utility>

#include "gradwire/rpc/agent_impl.h"
#include "gradwire/rpc/objects_impl.h"

namespace gradwire::rpc {
namespace {

// Does not wait for the replies: whatever calls an owner notices its loss.
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
    // While this process was stopped, renewals could not be received.
    if (now - std::exchange(before, now) > 2 * period) {
      object_table().extend(now + hold_time(lease_));
    }
    for (auto& ended : object_table().reap(now)) {
      end_elsewhere(std::move(ended));
    }
    try {
      renew_holds(lease_);
    } catch (const std::exception&) {
      // Tried again in a sixth of a lease; if that fails too, the leases end.
    }
    lock.lock();
  }
}

}  // namespace gradwire::rpc
