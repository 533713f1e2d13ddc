#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "gradwire/base/error.h"
#include "gradwire/base/placement.h"
#include "gradwire/comm/adopt_impl.h"
#include "gradwire/comm/agreement_impl.h"
#include "gradwire/comm/shared_store_impl.h"

namespace gradwire {
namespace {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

BackendPtr backend_for(const ProcessGroupPtr& group, c10::DeviceType device) {
  try {
    return group->getBackend(device);
  } catch (const c10::Error&) {
    return {};
  }
}

// With a transport, and what it is to be like, that moves what this group's
// does.
GroupOptions options_beside(const ProcessGroupPtr& group) {
  if (!group) {
    fail("comm", "got no process group");
  }
  std::vector<std::string> wanted;
  for (const auto& row : transport_rows()) {
    for (const auto device : row.info.devices) {
      const auto backend = backend_for(group, device);
      if (const auto found = backend ? row.find(backend) : std::nullopt) {
        return {
            .name = group->getGroupName(),
            .timeout = found->timeout,
            .transport = row.info.name,
            .like = found->backend};
      }
    }
    if (row.wanted != nullptr) {
      wanted.emplace_back(row.wanted);
    }
  }
  fail(
      "comm",
      "process group '",
      group->getGroupName(),
      "' has no ",
      join(wanted, ", or "));
}

// Who serves the store of a job as launchers set it up.
std::string store_server() {
  try {
    return detect_placement(process_environment()).agent_store ? "the launcher"
                                                               : "rank 0";
  } catch (const Error&) {
    return "rank 0";  // the group was not made from this environment
  }
}

}  // namespace

Group adopt(
    const ProcessGroupPtr& process_group,
    const std::string& subject,
    const std::function<std::vector<Fact>()>& find_facts) {
  const GroupOptions options = options_beside(process_group);
  const Origin origin{
      options.name, process_group->getRank(), process_group->getSize()};
  const StorePtr shared =
      share_store(process_group->getStore(), store_server(), options.timeout);
  // Ranks adopt a group equally often, each of them counts for itself.
  const auto turn = shared->add(concat("gradwire/adopt/", origin.rank), 1);
  const StorePtr store =
      c10::make_intrusive<c10d::PrefixStore>(concat("gradwire/", turn), shared);
  agree_checked_through(*store, "adopt", origin, options.timeout, subject, [&] {
    auto facts = library_facts();
    for (Fact& fact : find_facts()) {
      facts.push_back(std::move(fact));
    }
    return facts;
  });
  return make_group(store, origin.rank, origin.world, options);
}

}  // namespace gradwire
