#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <set>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/compat/gloo.h"

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
  auto store =
      c10::make_intrusive<c10d::PrefixStore>(name, parent.store->clone());
  return make_group(std::move(store), rank, world, options);
}

// The last reference to a group may be held by a callback that one of its own
// threads runs: such a group is taken apart on another thread.
void destroy(Group::Impl* impl) {
  const bool own_thread =
      (impl->backend && compat::is_own_thread(*impl->backend)) ||
      (impl->compressed && is_own_thread(*impl->compressed));
  if (own_thread) {
    std::thread([impl] { delete impl; }).detach();
  } else {
    delete impl;
  }
}

}  // namespace

Group make_group(
    StorePtr store, int rank, int world, const GroupOptions& options) {
  auto impl = std::shared_ptr<Group::Impl>(new Group::Impl, destroy);
  impl->options = options;
  impl->store = store;
  impl->origin = {options.name, rank, world};
  impl->meter = options.meter ? options.meter : std::make_shared<ByteMeter>();
  const auto gloo_store = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
  const compat::GlooOptions gloo{
      options.name,
      options.timeout,
      options.interface,
      options.address,
      options.like};
  try {
    impl->backend =
        compat::make_gloo(gloo_store, rank, world, gloo, impl->meter);
    // A rank that is done with its group at once must not close connections
    // that others are still making.
    impl->backend->barrier()->wait();
  } catch (const std::exception& e) {
    throw CommError(concat(
        "[gradwire.comm] group '",
        options.name,
        "' of ",
        world,
        " ranks could not connect: ",
        first_line(e.what()),
        " (rank ",
        rank,
        ")"));
  }
  impl->process_group =
      c10::make_intrusive<c10d::ProcessGroup>(gloo_store, rank, world);
  impl->process_group->setBackend(
      c10::DeviceType::CPU,
      c10d::ProcessGroup::BackendType::GLOO,
      impl->backend);
  impl->process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
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

Group Group::duplicate(const std::string& label) const {
  const int number = impl().children++;
  return make_child(
      impl(), concat(name(), "/", label, number), rank(), size(), timeout());
}

}  // namespace gradwire
