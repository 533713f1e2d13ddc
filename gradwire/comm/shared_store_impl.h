#pragma once

// Private to comm: the store of a job as this process talks to it.
//
// One connection to the store serves all groups of a process. Every operation
// has a deadline, the store's timeout, even when the server has stopped without
// a word; what goes wrong is a CommError that names who serves the store.
// clone() of such a store is another view of the same connection with a timeout
// of its own. Thread safe.

#include <functional>

#include "gradwire/base/error.h"
#include "gradwire/comm/transport_impl.h"

namespace gradwire {

// Of what `open` opens on a thread of the connection's own. When it throws, or
// takes two seconds more than the timeout, the error is what `unreachable`
// makes of the reason. `server`: who serves it ("rank 0").
StorePtr open_shared_store(
    const std::function<StorePtr()>& open,
    const std::string& server,
    std::chrono::milliseconds timeout,
    const std::function<CommError(const std::string& why)>& unreachable);

// The store that others have opened, by a connection of this process's own; the
// same one as long as any group uses it. Memory of this process needs no
// connection.
StorePtr share_store(
    const StorePtr& store,
    const std::string& server,
    std::chrono::milliseconds timeout);

// Waits until the store has all of the keys. False when it is too late; throws
// CommError when the store is lost.
bool wait_for_keys(
    c10d::Store& store,
    const std::vector<std::string>& keys,
    std::chrono::steady_clock::time_point until);

}  // namespace gradwire
