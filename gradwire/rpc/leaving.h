#pragma once

// Private to rpc: what a worker that waits to leave is told by others.

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

namespace gradwire::rpc {

// Thread safe.
class Leaving {
 public:
  // A worker is lost, and how that showed.
  void lose(int worker, const std::string& failure);
  void find(int worker);
  // There is something to look at: pause() ends.
  void wake();

  // Returns after this time, or earlier when there was a call of wake() that no
  // pause has ended for yet. Throws CommError when a worker is lost.
  void pause(std::chrono::milliseconds time);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool awake_ = false;
  std::map<int, std::string> lost_;
};

}  // namespace gradwire::rpc
