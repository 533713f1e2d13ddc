#pragma once

// Private to rpc: the thread that keeps leases.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace gradwire::rpc {

// Every sixth of a lease it renews this worker's holds with their owners, and
// ends the holds of others on objects here that were not renewed in time.
class LeaseKeeper {
 public:
  explicit LeaseKeeper(std::chrono::milliseconds lease);
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;

 private:
  void run();

  std::chrono::milliseconds lease_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gradwire::rpc
