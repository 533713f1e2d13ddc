#pragma once

// Private to rpc: texts that workers leave for each other in a group's store.

#include <string>
#include <vector>

#include "gradwire/comm/group_impl.h"

namespace gradwire::rpc {

// Each worker leaves one text under a topic. Throws CommError when the store
// is lost. Thread safe.
class Rendezvous {
 public:
  Rendezvous(StorePtr store, int rank, int world);

  void leave(const std::string& topic, const std::string& text);
  // Ranks that have left nothing yet.
  std::vector<int> missing(const std::string& topic);
  // The texts of all ranks. Only when none is missing.
  std::vector<std::string> read(const std::string& topic);

 private:
  template <class Work>
  auto guarded(const Work& work);

  StorePtr store_;
  int rank_;
  int world_;
};

}  // namespace gradwire::rpc
