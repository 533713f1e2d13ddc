#pragma once

// Private to rpc: texts that workers leave for each other in a group's store.

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/comm/group_impl.h"

namespace gradwire::rpc {

// Each worker leaves one text of one line under a topic. The last one to come
// puts all of them under one key, and that key is all that the others ask for.
// Throws CommError when the store is lost. Thread safe.
class Rendezvous {
 public:
  using Clock = std::chrono::steady_clock;

  // How to wait between two looks at the store, which come less and less often.
  struct Waiting {
    std::chrono::milliseconds longest_pause{50};
    // Sleeps for this long; may return earlier, and may throw. Null: just
    // sleeps.
    std::function<void(std::chrono::milliseconds)> pause = {};
  };

  // The store's timeout becomes this one's own: nobody else may use it.
  Rendezvous(StorePtr store, int rank, int world);

  // A store that takes longer for an answer is lost.
  void expect_answers_within(std::chrono::milliseconds timeout) {
    store_->setTimeout(timeout);
  }

  // Returns whether all ranks have left something by now.
  bool leave(const std::string& topic, const std::string& text);
  // Waits until all ranks have left something, and returns those that had not
  // by the deadline.
  std::vector<int> wait(
      const std::string& topic,
      Clock::time_point deadline,
      const Waiting& waiting);
  std::vector<int> wait(const std::string& topic, Clock::time_point deadline) {
    return wait(topic, deadline, Waiting());
  }
  // The texts of all ranks. Only when none is missing.
  std::vector<std::string> read(const std::string& topic);

 private:
  std::vector<int> missing(const std::string& topic);
  std::string get(const std::string& key);
  void set(const std::string& key, const std::string& text);
  template <class Work>
  auto guarded(const Work& work);

  StorePtr store_;
  int rank_;
  int world_;
};

}  // namespace gradwire::rpc
