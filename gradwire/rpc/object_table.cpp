#include "gradwire/rpc/object_table.h"

#include <algorithm>
#include <limits>
#include <random>

#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

[[noreturn]] void object_is_gone(ObjectId object) {
  fail(
      "rpc",
      "object ",
      object,
      " is gone: all its handles were released, or its holder was silent for "
      "a lease");
}

}  // namespace

std::int64_t random_id() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return std::uniform_int_distribution<std::int64_t>(
      1, std::numeric_limits<std::int64_t>::max())(generator);
}

std::pair<ObjectId, HoldId> ObjectTable::add(Object object) {
  const ObjectId id = random_id();
  const HoldId hold = random_id();
  const std::lock_guard lock(mutex_);
  objects_.emplace(id, Entry{std::move(object), 1});
  holds_.emplace(hold, Hold{id, Clock::time_point::max()});
  return {id, hold};
}

void ObjectTable::retain(
    ObjectId object, HoldId hold, Clock::time_point expiry) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(object);
  if (found == objects_.end()) {
    object_is_gone(object);
  }
  if (holds_.emplace(hold, Hold{object, expiry}).second) {
    ++found->second.holds;
  }
}

void ObjectTable::renew(
    const std::vector<HoldId>& holds, Clock::time_point expiry) {
  const std::lock_guard lock(mutex_);
  for (const HoldId hold : holds) {
    if (const auto found = holds_.find(hold); found != holds_.end()) {
      found->second.expiry = expiry;
    }
  }
}

// Returns the object when this was its last hold. The caller destroys it after
// unlocking: its destructor may take long and may call into this table.
std::shared_ptr<void> ObjectTable::release_locked(
    std::map<HoldId, Hold>::iterator hold) {
  const auto entry = objects_.find(hold->second.object);
  holds_.erase(hold);
  if (--entry->second.holds > 0) {
    return nullptr;
  }
  auto last = std::move(entry->second.object.value);
  objects_.erase(entry);
  return last;
}

void ObjectTable::release(HoldId hold) {
  std::shared_ptr<void> last;
  const std::lock_guard lock(mutex_);
  if (const auto found = holds_.find(hold); found != holds_.end()) {
    last = release_locked(found);
  }
}

void ObjectTable::extend(Clock::time_point expiry) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, hold] : holds_) {
    hold.expiry = std::max(hold.expiry, expiry);
  }
}

std::vector<std::shared_ptr<void>> ObjectTable::reap(Clock::time_point now) {
  std::vector<std::shared_ptr<void>> ended;
  const std::lock_guard lock(mutex_);
  for (auto hold = holds_.begin(); hold != holds_.end();) {
    const auto next = std::next(hold);
    if (hold->second.expiry <= now) {
      if (auto last = release_locked(hold)) {
        ended.push_back(std::move(last));
      }
    }
    hold = next;
  }
  return ended;
}

std::shared_ptr<void> ObjectTable::find(
    ObjectId object, const std::string& type, std::type_index id) const {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(object);
  if (found == objects_.end()) {
    object_is_gone(object);
  }
  const Object& stored = found->second.object;
  if (stored.type != type || stored.id != id) {
    fail(
        "rpc",
        "object ",
        object,
        " is a ",
        stored.type,
        ", expected a ",
        type,
        stored.type == type ? " of another C++ type" : "");
  }
  return stored.value;
}

std::size_t ObjectTable::size() const {
  const std::lock_guard lock(mutex_);
  return objects_.size();
}

void ObjectTable::clear() {
  std::map<ObjectId, Entry> ended;
  const std::lock_guard lock(mutex_);
  ended.swap(objects_);
  holds_.clear();
}

}  // namespace gradwire::rpc
