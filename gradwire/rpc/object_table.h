#pragma once

// Private to rpc: the objects this worker owns for others.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <typeindex>
#include <vector>

namespace gradwire::rpc {

using ObjectId = std::int64_t;
using HoldId = std::int64_t;

// An object lives as long as it has a hold. A hold is a number that belongs to
// one process at a time. That process renews the hold before the lease is over,
// and releases it or passes it on in a message. When a message is lost or a
// holder dies, the hold ends with its lease, without further bookkeeping.
// Thread safe.
class ObjectTable {
 public:
  using Clock = std::chrono::steady_clock;

  struct Object {
    std::shared_ptr<void> value;
    // Its type: the registered name, and the type in this program.
    std::string type;
    std::type_index id = typeid(void);
  };

  // Adds an object with a hold of this process, which needs no renewal.
  std::pair<ObjectId, HoldId> add(Object object);
  // Another hold until `expiry`. Throws Error if the object is gone.
  void retain(ObjectId object, HoldId hold, Clock::time_point expiry);
  // Ignores holds that are unknown, because they ran out or were released.
  void renew(const std::vector<HoldId>& holds, Clock::time_point expiry);
  // Nothing happens if it is unknown.
  void release(HoldId hold);
  // Ends the holds that ran out. Returns the objects that had no other hold,
  // for the caller to destroy: destructors may take long.
  std::vector<std::shared_ptr<void>> reap(Clock::time_point now);
  // No hold runs out before this.
  void extend(Clock::time_point expiry);

  // Throws Error if it is gone or of another type.
  std::shared_ptr<void> find(
      ObjectId object, const std::string& type, std::type_index id) const;
  std::size_t size() const;
  void clear();

 private:
  struct Hold {
    ObjectId object;
    Clock::time_point expiry;
  };
  struct Entry {
    Object object;
    std::size_t holds = 0;
  };
  std::shared_ptr<void> release_locked(std::map<HoldId, Hold>::iterator hold);

  mutable std::mutex mutex_;
  std::map<ObjectId, Entry> objects_;
  std::map<HoldId, Hold> holds_;
};

// A random number, different from those of other processes.
std::int64_t random_id();

}  // namespace gradwire::rpc
