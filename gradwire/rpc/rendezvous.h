#pragma once

// Private to rpc: texts that workers leave for each other in a group's store.

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/comm/group_impl.h"

namespace gradwire::rpc {

// Each worker leaves one text under a topic. Throws CommError when the store
// is lost. Thread safe.
class Rendezvous {
 public:
  using Clock = std::chrono::steady_clock;

  Rendezvous(StorePtr store, int rank, int world);

  void leave(const std::string& topic, const std::string& text);
  // Waits until all ranks have left something, and returns those that had not
  // by the deadline. `meanwhile` runs again and again and may throw.
  std::vector<int> wait(
      const std::string& topic,
      Clock::time_point deadline,
      const std::function<void()>& meanwhile = [] {});
  // The texts of all ranks. Only when none is missing.
  std::vector<std::string> read(const std::string& topic);

 private:
  std::vector<int> missing(const std::string& topic);
  template <class Work>
  auto guarded(const Work& work);

  StorePtr store_;
  int rank_;
  int world_;
};

}  // namespace gradwire::rpc
