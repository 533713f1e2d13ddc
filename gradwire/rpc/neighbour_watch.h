#pragma once

// Private to rpc: the thread that notices when a worker is lost.

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "gradwire/rpc/reply.h"

namespace gradwire::rpc {

class Agent;

// Asks the worker of the next rank whether it lives, twice a second. When it
// does not answer within the option `liveness`, all workers are told that it is
// lost, and when it answers again, that it is back. So every worker is watched
// by one other, at the cost of one small message.
class NeighbourWatch {
 public:
  // The agent must outlive it.
  explicit NeighbourWatch(Agent& agent);
  ~NeighbourWatch();
  NeighbourWatch(const NeighbourWatch&) = delete;

 private:
  void run();
  void look();

  Agent& agent_;
  // Of the question under way.
  std::optional<Reply<void>> reply_;
  bool lost_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gradwire::rpc
