#pragma once

// Private to comm: an agreement among ranks that have a store but no group yet.

#include "gradwire/comm/agreement.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {

// Versions of gradwire and Torch: ranks with different ones would not
// understand each other.
std::vector<Fact> library_facts();

void agree_through(
    c10d::Store& store,
    const std::string& prefix,
    const Origin& origin,
    std::chrono::milliseconds timeout,
    const std::string& subject,
    const std::vector<Fact>& facts);

// As agree_checked.
void agree_checked_through(
    c10d::Store& store,
    const std::string& prefix,
    const Origin& origin,
    std::chrono::milliseconds timeout,
    const std::string& subject,
    const std::function<std::vector<Fact>()>& find_facts);

}  // namespace gradwire
