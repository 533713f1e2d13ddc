#include "gradwire/rpc/leaving.h"

#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::rpc {

void Leaving::lose(int worker, const std::string& failure) {
  const std::lock_guard lock(mutex_);
  lost_.emplace(worker, failure);
  changed_.notify_all();
}

void Leaving::find(int worker) {
  const std::lock_guard lock(mutex_);
  lost_.erase(worker);
}

void Leaving::wake() {
  const std::lock_guard lock(mutex_);
  awake_ = true;
  changed_.notify_all();
}

void Leaving::pause(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return awake_ || !lost_.empty(); });
  awake_ = false;
  if (!lost_.empty()) {
    throw CommError(lost_.begin()->second);
  }
}

}  // namespace gradwire::rpc
