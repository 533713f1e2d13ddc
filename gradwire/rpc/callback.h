#pragma once

// Private to rpc: what happens to a message that arrives.

#include <memory>
#include <string>

#include "gradwire/rpc/handler_threads.h"

namespace torch::distributed::rpc {
class RequestCallback;
}

namespace gradwire::rpc {

// Calls of registered functions run on `threads`; messages of distributed
// autograd are Torch's business. Everything else is refused: operators (which
// could read and write files), scripts, Python, profiling and Torch's remote
// references, alone or in the wrapping of an autograd message.
std::unique_ptr<torch::distributed::rpc::RequestCallback> make_callback(
    std::shared_ptr<HandlerThreads> threads);

// Throws the Error that refuses `what`.
[[noreturn]] void refuse(const std::string& what);

}  // namespace gradwire::rpc
