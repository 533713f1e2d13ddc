#pragma once

// Private to rpc: what other workers sent. Nothing here hands their bytes to
// Torch's readers of messages, which know classes, operators and scripts.

#include <ATen/core/ivalue.h>

#include <memory>

namespace torch::distributed::rpc {
class Message;
class RpcCommandBase;
}  // namespace torch::distributed::rpc

namespace gradwire::rpc {

// The call of a function, alone or under an autograd context, or what
// distributed autograd asks of a worker. Throws Error for all other messages.
std::unique_ptr<torch::distributed::rpc::RpcCommandBase> read_request(
    const torch::distributed::rpc::Message& request);

// The answer to a call. One under an autograd context becomes part of its
// graph. Throws Error for what is none.
c10::IValue read_response(torch::distributed::rpc::Message& response);

}  // namespace gradwire::rpc
