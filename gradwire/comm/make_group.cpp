#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <set>
#include <system_error>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/comm/parts.h"
#include "gradwire/comm/roll_call_impl.h"
#include "gradwire/comm/shared_store_impl.h"

namespace gradwire {
namespace {

Group make_child(
    const Group::Impl& parent,
    const std::string& name,
    int rank,
    int world,
    std::chrono::milliseconds timeout,
    std::shared_ptr<ByteMeter> meter = nullptr) {
  GroupOptions options = parent.options;
  options.name = name;
  options.timeout = timeout;
  options.meter = std::move(meter);
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      name, share_store(parent.store, "rank 0", timeout));
  return make_group(std::move(store), rank, world, options);
}

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const StorePtr& store, const std::shared_ptr<Transport>& transport) {
  using c10d::ProcessGroup;
  const Origin& origin = transport->origin();
  auto group =
      c10::make_intrusive<ProcessGroup>(store, origin.rank, origin.world);
  group->setBackend(
      transport->device().type(),
      ProcessGroup::BackendType::CUSTOM,
      make_backend(transport));
  group->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
  return group;
}

bool is_own_thread(const Group::Impl& impl) {
  return (impl.transport && impl.transport->is_own_thread()) ||
         (impl.compressed && is_own_thread(*impl.compressed));
}

// Groups whose last reference was dropped by one of their own threads when no
// other could be started for them. The next group that is destroyed takes them
// along.
class LeftOver {
 public:
  void keep(Group::Impl* impl) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(impl);
  }

  void destroy() {
    std::vector<Group::Impl*> now;
    {
      const std::lock_guard lock(mutex_);
      const auto later = std::partition(
          kept_.begin(), kept_.end(), [](const Group::Impl* impl) {
            return is_own_thread(*impl);
          });
      now.assign(later, kept_.end());
      kept_.erase(later, kept_.end());
    }
    for (Group::Impl* impl : now) {
      delete impl;
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Group::Impl*> kept_;
};

// Never destroyed: groups may outlive statics.
LeftOver& left_over() {
  static auto* groups = new LeftOver;
  return *groups;
}

// The last reference to a group may be held by a callback that one of its own
// threads runs: such a group is taken apart on another thread. A forked child
// has none of the threads that taking it apart waits for.
void destroy(Group::Impl* impl) {
  if (!impl->home.is_here()) {
    return;
  }
  if (!is_own_thread(*impl)) {
    delete impl;
    left_over().destroy();
    return;
  }
  try {
    std::thread([impl] { delete impl; }).detach();
  } catch (const std::system_error&) {
    left_over().keep(impl);
  }
}

// Over the connections of options.transport. Ranks that fail say so in the
// store, so that their errors can name those that are missing.
std::shared_ptr<Transport> connect_ranks(
    const StorePtr& store,
    const Origin& origin,
    const GroupOptions& options,
    const std::shared_ptr<ByteMeter>& meter) {
  try {
    auto transport = find_transport(options.transport)
                         .make(
                             store,
                             {origin,
                              options.timeout,
                              options.interface,
                              options.address,
                              options.like,
                              meter});
    // A rank that is done with its group at once must not close connections
    // that others are still making.
    transport->barrier().wait();
    return transport;
  } catch (const std::exception& e) {
    const auto* mistake = dynamic_cast<const Error*>(&e);
    if (mistake != nullptr && dynamic_cast<const CommError*>(&e) == nullptr) {
      throw;
    }
    throw CommError(
        concat(
            "[gradwire.comm] group '",
            options.name,
            "' of ",
            origin.world,
            " ranks could not connect: ",
            first_line(e.what())),
        {.rank = origin.rank,
         .peer = RollBook(store, origin, options.timeout)
                     .who_is_missing("connect")});
  }
}

}  // namespace

Group make_group(
    StorePtr store, int rank, int world, const GroupOptions& options) {
  auto impl = std::shared_ptr<Group::Impl>(new Group::Impl, destroy);
  impl->options = options;
  impl->origin = {options.name, rank, world};
  impl->meter = options.meter ? options.meter : std::make_shared<ByteMeter>();
  const auto own_store =
      c10::make_intrusive<c10d::PrefixStore>(options.transport, store);
  impl->transport =
      connect_ranks(own_store, impl->origin, options, impl->meter);
  impl->process_group = make_process_group(own_store, impl->transport);
  impl->store = std::move(store);
  return Group(std::move(impl));
}

Group duplicate_counted(const Group& parent, const std::string& label) {
  Group::Impl& impl = parent.impl();
  const int number = impl.children++;
  return make_child(
      impl,
      concat(parent.name(), "/", label, number),
      parent.rank(),
      parent.size(),
      parent.timeout(),
      impl.meter);
}

Group Group::subgroup(
    const std::vector<int>& ranks,
    std::optional<std::chrono::milliseconds> timeout) const {
  const std::string list = join(ranks);
  agree(*this, "subgroup", {{"ranks", list}});
  const int number = impl().children++;
  if (ranks.empty() ||
      std::set(ranks.begin(), ranks.end()).size() != ranks.size()) {
    fail(
        "comm",
        "subgroup got ranks [",
        list,
        "], expected at least one and none twice");
  }
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size()) {
      fail(
          "comm",
          "subgroup got ranks [",
          list,
          "], expected 0 to ",
          size() - 1);
    }
  }
  const auto me = std::ranges::find(ranks, rank());
  if (me == ranks.end()) {
    return {};
  }
  return make_child(
      impl(),
      concat(name(), "/sub", number),
      static_cast<int>(me - ranks.begin()),
      static_cast<int>(ranks.size()),
      timeout.value_or(this->timeout()));
}

Group make_part(const Group& group, const Parts& parts) {
  Group::Impl& impl = group.impl();
  const int number = impl.children++;
  for (const auto& ranks : parts) {
    const auto me = std::ranges::find(ranks, group.rank());
    if (me != ranks.end()) {
      return make_child(
          impl,
          concat(group.name(), "/part", number, ".", ranks.front()),
          static_cast<int>(me - ranks.begin()),
          static_cast<int>(ranks.size()),
          group.timeout(),
          impl.meter);
    }
  }
  fail("comm", "rank ", group.rank(), " is in no part of the group");
}

Group Group::duplicate(const std::string& label) const {
  const int number = impl().children++;
  return make_child(
      impl(), concat(name(), "/", label, number), rank(), size(), timeout());
}

}  // namespace gradwire
