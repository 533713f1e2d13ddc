#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "gradwire/base/error.h"
#include "gradwire/comm/adopt_impl.h"
#include "gradwire/comm/agreement_impl.h"
#include "gradwire/compat/gloo.h"

namespace gradwire {
namespace {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

c10::intrusive_ptr<c10d::Backend> find_gloo(const ProcessGroupPtr& group) {
  if (!group) {
    fail("comm", "got no process group");
  }
  c10::intrusive_ptr<c10d::Backend> gloo;
  try {
    gloo = compat::find_gloo(group->getBackend(c10::DeviceType::CPU));
  } catch (const c10::Error&) {
    // It has nothing for the CPU.
  }
  if (!gloo) {
    fail(
        "comm",
        "process group '",
        group->getGroupName(),
        "' has no Gloo backend for the cpu: make it with "
        "init_process_group(\"gloo\") or \"cpu:gloo,cuda:nccl\"");
  }
  return gloo;
}

}  // namespace

Group adopt(
    const ProcessGroupPtr& process_group,
    const std::string& subject,
    const std::function<std::vector<Fact>()>& find_facts) {
  GroupOptions options;
  options.like = find_gloo(process_group);
  options.name = process_group->getGroupName();
  options.timeout = compat::timeout_of(*options.like);
  const Origin origin{
      options.name, process_group->getRank(), process_group->getSize()};
  const StorePtr shared = process_group->getStore()->clone();
  // Ranks adopt a group equally often, each of them counts for itself.
  const auto turn = shared->add(concat("gradwire/adopt/", origin.rank), 1);
  const StorePtr store =
      c10::make_intrusive<c10d::PrefixStore>(concat("gradwire/", turn), shared);
  agree_checked_through(
      *store, "adopt", origin, options.timeout, subject, find_facts);
  return make_group(store, origin.rank, origin.world, options);
}

}  // namespace gradwire
