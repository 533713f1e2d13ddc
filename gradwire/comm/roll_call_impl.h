#pragma once

// Private to comm: a roll call among ranks that have a store but no group.

#include "gradwire/comm/transport_impl.h"

namespace gradwire {

// Where ranks say that they are here. Looking takes five seconds or a quarter
// of the timeout at most, twice that when the store does not answer. Thread
// safe.
class RollBook {
 public:
  RollBook(
      const StorePtr& store, Origin origin, std::chrono::milliseconds timeout);

  // Throws CommError when the store is lost.
  void say_here(const std::string& name) const;
  // Says it and waits for the others, who call it with the same name.
  // "rank 2 does not answer", "" when all do.
  std::string who_is_missing(const std::string& name) const;

 private:
  std::string look(const std::string& name) const;
  std::string key(const std::string& name, int rank) const;

  std::chrono::milliseconds patience_;
  StorePtr store_;
  Origin origin_;
};

}  // namespace gradwire
