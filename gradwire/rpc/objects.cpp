#include "gradwire/rpc/objects.h"

#include <set>
#include <unordered_map>

#include "gradwire/rpc/agent_impl.h"
#include "gradwire/rpc/functions_impl.h"
#include "gradwire/rpc/objects_impl.h"

namespace gradwire::rpc {
namespace {

using Clock = ObjectTable::Clock;

// Holds on objects of other workers.
struct Holds {
  std::mutex mutex;
  std::map<int, std::set<HoldId>> by_owner;
};

// Neither is ever destroyed: handles may be static objects.
Holds& holds() {
  static auto* all = new Holds;
  return *all;
}

struct TypeNames {
  std::mutex mutex;
  std::unordered_map<std::type_index, std::string> names;
};

TypeNames& type_names() {
  static auto* all = new TypeNames;
  return *all;
}

Clock::time_point next_expiry() {
  return Clock::now() + hold_time(running_agent()->options().lease);
}

// Whether this process is the worker that owns it.
bool is_own(const Agent& agent, int owner) {
  return agent.self().id == owner;
}

template <class R, class... Args>
void add_own(const std::string& name, R (*function)(Args...)) {
  add_own_function(name, detail::make_function(std::function(function)));
}

}  // namespace

ObjectTable& object_table() {
  static auto* table = new ObjectTable;
  return *table;
}

std::map<int, std::vector<HoldId>> holds_by_owner() {
  const std::lock_guard lock(holds().mutex);
  std::map<int, std::vector<HoldId>> result;
  for (const auto& [owner, ids] : holds().by_owner) {
    result[owner] = {ids.begin(), ids.end()};
  }
  return result;
}

void register_own_functions() {
  add_own(
      "ping", +[] {});
  add_own(
      "wake", +[] { running_agent()->leaving().wake(); });
  add_own(
      "hear_of", +[](int worker, const std::optional<std::string>& failure) {
        running_agent()->hear_of(worker, failure);
      });
  add_own(
      "retain", +[](ObjectId object, HoldId hold) {
        object_table().retain(object, hold, next_expiry());
      });
  add_own(
      "release", +[](HoldId hold) { object_table().release(hold); });
  add_own(
      "renew", +[](const std::vector<HoldId>& ids) {
        object_table().renew(ids, next_expiry());
      });
}

void forget_objects() {
  object_table().clear();
  const std::lock_guard lock(holds().mutex);
  holds().by_owner.clear();
}

std::size_t owned_objects() {
  return object_table().size();
}

ObjectHold::ObjectHold(int owner, std::int64_t object, std::int64_t hold)
    : owner_(owner), object_(object), hold_(hold) {
  const std::lock_guard lock(holds().mutex);
  holds().by_owner[owner_].insert(hold_);
}

ObjectHold::~ObjectHold() {
  {
    const std::lock_guard lock(holds().mutex);
    holds().by_owner[owner_].erase(hold_);
  }
  const auto agent = find_running_agent();
  if (!agent) {
    return;  // after shutdown: the owner has forgotten it, or will
  }
  try {
    if (is_own(*agent, owner_)) {
      object_table().release(hold_);
    } else {
      // Does not wait: if the message is lost, the lease ends the hold.
      agent->call_own<void>(owner_, agent->options().lease, "release", hold_);
    }
  } catch (const std::exception&) {
    // As above.
  }
}

namespace detail {

HoldPtr add_object(
    std::shared_ptr<void> value, const std::string& type, std::type_index id) {
  const auto agent = running_agent();
  const auto [object, hold] = object_table().add({std::move(value), type, id});
  return std::make_shared<ObjectHold>(agent->self().id, object, hold);
}

std::shared_ptr<void> local_object(
    std::int64_t object, const std::string& type, std::type_index id) {
  return object_table().find(object, type, id);
}

c10::IValue pack_hold(const ObjectHold& hold) {
  const auto agent = running_agent();
  const HoldId fresh = random_id();
  if (is_own(*agent, hold.owner())) {
    object_table().retain(hold.object(), fresh, next_expiry());
  } else {
    agent
        ->call_own<void>(
            hold.owner(),
            agent->options().timeout,
            "retain",
            hold.object(),
            fresh)
        .wait();
  }
  return pack_tuple({std::int64_t{hold.owner()}, hold.object(), fresh});
}

HoldPtr unpack_hold(const c10::IValue& packed, const std::string& type) {
  const auto parts = elements_of(packed, type, 3);
  const auto owner = Wire<int>::unpack(parts[0]);
  const auto agent = running_agent();
  if (owner < 0 || owner >= static_cast<int>(agent->workers().size())) {
    fail(
        "rpc", "received a handle of worker ", owner, ", which does not exist");
  }
  const auto object = Wire<ObjectId>::unpack(parts[1]);
  const auto hold = Wire<HoldId>::unpack(parts[2]);
  if (is_own(*agent, owner)) {
    // A hold of this process needs no renewal, and gets none.
    object_table().renew({hold}, Clock::time_point::max());
  }
  return std::make_shared<ObjectHold>(owner, object, hold);
}

void name_type(std::type_index type, const std::string& name) {
  const std::lock_guard lock(type_names().mutex);
  for (const auto& [other, taken] : type_names().names) {
    if (taken == name && other != type) {
      fail("rpc", "'", name, "' is registered already, for another class");
    }
  }
  const auto [known, is_new] = type_names().names.emplace(type, name);
  if (!is_new) {
    fail(
        "rpc",
        "'",
        name,
        "' cannot be registered, it is known as '",
        known->second,
        "' already");
  }
}

std::optional<std::string> name_of_type(std::type_index type) {
  const std::lock_guard lock(type_names().mutex);
  const auto found = type_names().names.find(type);
  return found == type_names().names.end() ? std::nullopt
                                           : std::optional(found->second);
}

}  // namespace detail

}  // namespace gradwire::rpc
