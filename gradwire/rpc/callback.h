#pragma once

// Private to rpc: what happens to a message that arrives.

#include <memory>

#include "gradwire/rpc/handler_threads.h"

namespace torch::distributed::rpc {
class RequestCallback;
}

namespace gradwire::rpc {

// Calls of registered functions run on `threads`. Requests of distributed
// autograd are left to Torch. Everything else is refused: operators (which can
// read and write files), scripts, Python, profiling and Torch's remote
// references, also inside an autograd message.
std::unique_ptr<torch::distributed::rpc::RequestCallback> make_callback(
    std::shared_ptr<HandlerThreads> threads);

}  // namespace gradwire::rpc
