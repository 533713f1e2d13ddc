#pragma once

// Private to gradwire: groups beside those that Torch's users have made.

#include "gradwire/comm/agreement.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {

// The ranks of `process_group` with connections of their own, made like its
// own and with the same timeout. Before they connect, ranks agree
// through that group's store on what `find_facts` finds, as in agree_checked.
// Collective. Throws Error when no
// transport goes with the group.
Group adopt(
    const c10::intrusive_ptr<c10d::ProcessGroup>& process_group,
    const std::string& subject,
    const std::function<std::vector<Fact>()>& find_facts);

}  // namespace gradwire
