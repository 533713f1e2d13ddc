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

// An object lives as long as somebody holds it. A hold is a number that one
// process at a time answers for: it renews the hold before the lease is over,
// and releases it or hands it on in a message. So a message that is lost, or a
// holder that dies, costs a lease and no bookkeeping. Thread safe.
class ObjectTable {
 public:
  using Clock = std::chrono::steady_clock;

  struct Object {
    std::shared_ptr<void> value;
    // What its handles are handles of, by name and in this program.
    std::string type;
    std::type_index id = typeid(void);
  };

  // Adds an object with a hold of this process, which needs no renewal.
  std::pair<ObjectId, HoldId> add(Object object);
  // Another hold until `expiry`. Throws Error if the object is gone.
  void retain(ObjectId object, HoldId hold, Clock::time_point expiry);
  // A hold that is unknown, because it ran out or was released, is left out.
  void renew(const std::vector<HoldId>& holds, Clock::time_point expiry);
  // Nothing happens if it is unknown.
  void release(HoldId hold);
  // Ends the holds that ran out and returns objects that ended with them:
  // their destructors may take their time.
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

// A number that no other process will think of.
std::int64_t random_id();

}  // namespace gradwire::rpc
