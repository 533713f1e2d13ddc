#include "gradwire/rpc/messages.h"

#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/script_call.h>

#include <string_view>

#include "gradwire/base/error.h"
#include "gradwire/rpc/functions_impl.h"
#include "gradwire/rpc/unpickle.h"
#include "gradwire/rpc/value.h"

namespace gradwire::rpc {
namespace {

namespace torch_rpc = torch::distributed::rpc;
namespace torch_autograd = torch::distributed::autograd;

using torch_rpc::Message;
using torch_rpc::MessageType;
using Command = std::unique_ptr<torch_rpc::RpcCommandBase>;
using Tensors = std::vector<at::Tensor>;

[[noreturn]] void refuse(const std::string& what) {
  fail("rpc", what, " is refused: only registered functions can be called");
}

std::string_view payload_of(const Message& message) {
  return {message.payload().data(), message.payload().size()};
}

// What Torch appends to a message under an autograd context: a pickle, and its
// length in 8 bytes.
struct AutogradPart {
  // What comes before it.
  std::string_view message;
  MessageType type;
  torch_autograd::AutogradMetadata metadata;
  torch_rpc::worker_id_t from;
};

std::uint64_t big_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char byte : bytes) {
    value = value << 8 | static_cast<std::uint8_t>(byte);
  }
  return value;
}

AutogradPart read_autograd_part(std::string_view payload) {
  constexpr std::size_t kLengthBytes = 8;
  if (payload.size() < kLengthBytes) {
    fail("rpc", "received an autograd message without its end");
  }
  const std::string_view body =
      payload.substr(0, payload.size() - kLengthBytes);
  const std::uint64_t length = big_endian(payload.substr(body.size()));
  if (length > body.size()) {
    fail("rpc", "received an autograd message without its end");
  }
  const std::size_t start = body.size() - length;
  const auto parts =
      elements_of(unpickle(body.substr(start), {}), "an autograd message", 5);
  if (!parts[4].isGenericDict()) {
    refuse_value(parts[4], "a map of devices");
  }
  const auto from = Wire<torch_rpc::worker_id_t>::unpack(parts[3]);
  // Throws for a worker that does not exist.
  torch_rpc::RpcAgent::getCurrentRpcAgent()->getWorkerInfo(from);
  return {
      body.substr(0, start),
      static_cast<MessageType>(Wire<int>::unpack(parts[0])),
      {Wire<std::int64_t>::unpack(parts[1]),
       Wire<std::int64_t>::unpack(parts[2])},
      from};
}

void check_wrapped(const AutogradPart& part, MessageType expected) {
  if (part.type != expected) {
    refuse(concat("a message of type ", part.type, " in an autograd message"));
  }
}

// Torch writes the arguments, whether the function is asynchronous, and its
// name; for an operator two texts at the end.
Command read_call(std::string_view payload, const Tensors& tensors) {
  auto parts = elements_of(unpickle(payload, tensors), "a call");
  const std::size_t count = parts.size();
  if (count < 2 || !parts[count - 1].isString() || !parts[count - 2].isBool()) {
    refuse("the call of an operator");
  }
  const std::string name = parts[count - 1].toStringRef();
  if (!is_function_name(name)) {
    refuse("a call of something that is not the name of a function");
  }
  parts.resize(count - 2);
  return std::make_unique<torch_rpc::ScriptCall>(
      c10::QualifiedName(name), std::move(parts));
}

Command read_call_with_autograd(const Message& message) {
  const AutogradPart part = read_autograd_part(payload_of(message));
  check_wrapped(part, MessageType::SCRIPT_CALL);
  return std::make_unique<torch_autograd::RpcWithAutograd>(
      part.from,
      MessageType::FORWARD_AUTOGRAD_REQ,
      part.metadata,
      read_call(part.message, message.tensors()),
      MessageType::SCRIPT_CALL,
      message.tensors());
}

// The gradients, the context, the message they answer, and whether to keep the
// graph.
Command read_gradients(const Message& message) {
  auto parts = elements_of(
      unpickle(payload_of(message), message.tensors()), "gradients");
  if (parts.size() < 3) {
    fail("rpc", "received gradients without their context");
  }
  const auto rest = parts.end() - 3;
  const torch_autograd::AutogradMetadata metadata{
      Wire<std::int64_t>::unpack(rest[0]), Wire<std::int64_t>::unpack(rest[1])};
  const bool keep_graph = Wire<bool>::unpack(rest[2]);
  Tensors gradients;
  for (auto part = parts.begin(); part != rest; ++part) {
    if (!part->isTensor()) {
      refuse_value(*part, "a gradient");
    }
    gradients.push_back(part->toTensor());
  }
  return std::make_unique<torch_autograd::PropagateGradientsReq>(
      metadata, std::move(gradients), keep_graph);
}

Command read_cleanup(const Message& message) {
  return std::make_unique<torch_autograd::CleanupAutogradContextReq>(
      Wire<std::int64_t>::unpack(unpickle(payload_of(message), {})));
}

}  // namespace

Command read_request(const Message& request) {
  check_received(request.tensors());
  switch (request.type()) {
    case MessageType::SCRIPT_CALL:
      return read_call(payload_of(request), request.tensors());
    case MessageType::FORWARD_AUTOGRAD_REQ:
      return read_call_with_autograd(request);
    case MessageType::BACKWARD_AUTOGRAD_REQ:
      return read_gradients(request);
    case MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ:
      return read_cleanup(request);
    default:
      refuse(concat("a message of type ", request.type()));
  }
}

c10::IValue read_response(Message& response) {
  check_received(response.tensors());
  if (response.type() == MessageType::SCRIPT_RET) {
    return unpickle(payload_of(response), response.tensors());
  }
  if (response.type() != MessageType::FORWARD_AUTOGRAD_RESP) {
    fail("rpc", "received a message of type ", response.type(), " as answer");
  }
  const AutogradPart part = read_autograd_part(payload_of(response));
  check_wrapped(part, MessageType::SCRIPT_RET);
  torch_autograd::addRecvRpcBackward(
      part.metadata, response.tensors(), part.from, /*deviceMap=*/{});
  return unpickle(part.message, response.tensors());
}

}  // namespace gradwire::rpc
