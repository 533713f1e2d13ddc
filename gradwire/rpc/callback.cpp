#include "gradwire/rpc/callback.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>

#include <algorithm>
#include <string_view>

#include "gradwire/base/error.h"
#include "gradwire/rpc/answer.h"
#include "gradwire/rpc/functions_impl.h"

namespace gradwire::rpc {
namespace {

namespace torch_rpc = torch::distributed::rpc;
namespace torch_autograd = torch::distributed::autograd;

using torch_rpc::JitFuture;
using torch_rpc::Message;
using torch_rpc::MessageType;
using Container = torch_autograd::DistAutogradContainer;
using Streams = std::vector<c10::Stream>;
using FuturePtr = c10::intrusive_ptr<JitFuture>;

bool is_served(MessageType type) {
  switch (type) {
    case MessageType::SCRIPT_CALL:
    case MessageType::FORWARD_AUTOGRAD_REQ:
    case MessageType::BACKWARD_AUTOGRAD_REQ:
    case MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ:
      return true;
    default:
      return false;
  }
}

void check_message(const Message& message) {
  if (!is_served(message.type())) {
    refuse(concat("a message of type ", message.type()));
  }
  // How Torch's pickle says that a remote reference follows. Reading one would
  // involve this worker in their bookkeeping.
  constexpr std::string_view kReference = "torch.distributed.rpc\nrref\n";
  const auto& payload = message.payload();
  if (std::ranges::search(payload, kReference).begin() != payload.end()) {
    refuse("an argument with a remote reference of Torch");
  }
}

void check_call(torch_rpc::RpcCommandBase& command) {
  const auto& call = static_cast<torch_rpc::ScriptCall&>(command);
  if (call.hasOp() || !call.hasQualifiedName()) {
    refuse("the call of an operator");
  }
}

// What is inside of an autograd message goes past Torch's checks.
void check_command(torch_rpc::RpcCommandBase& command, MessageType type) {
  if (type == MessageType::SCRIPT_CALL) {
    check_call(command);
  }
  if (type == MessageType::FORWARD_AUTOGRAD_REQ) {
    auto& wrapper = static_cast<torch_autograd::RpcWithAutograd&>(command);
    if (wrapper.wrappedMessageType() != MessageType::SCRIPT_CALL) {
      refuse(concat(
          "a message of type ",
          wrapper.wrappedMessageType(),
          " in an autograd message"));
    }
    check_call(wrapper.wrappedRpc());
  }
}

// The thread belongs to the context of the call while it lives.
class ContextScope {
 public:
  explicit ContextScope(std::int64_t id) {
    Container::forceCurrentContextId(id);
  }
  ~ContextScope() {
    Container::getInstance().clearCurrentContext();
  }
  ContextScope(const ContextScope&) = delete;
};

void complete(JitFuture& future, const c10::IValue& value) {
  auto [message, storages] = torch_rpc::withStorages(
      torch_rpc::ScriptResp(c10::IValue(value)).toMessage());
  future.markCompleted(std::move(message), std::move(storages));
}

class Callback final : public torch_rpc::RequestCallbackNoPython {
 public:
  explicit Callback(std::shared_ptr<HandlerThreads> threads)
      : threads_(std::move(threads)) {}

 protected:
  FuturePtr processMessage(Message& request, Streams streams) const override {
    try {
      check_message(request);
    } catch (const std::exception& e) {
      return asFuture(handleError(e, request.type(), request.id()));
    }
    return RequestCallbackNoPython::processMessage(request, std::move(streams));
  }

  FuturePtr processRpcWithErrors(
      torch_rpc::RpcCommandBase& command,
      const MessageType& type,
      const Streams& streams) const override {
    try {
      check_command(command, type);
    } catch (const std::exception&) {
      return asFuture(std::current_exception());
    }
    return RequestCallbackNoPython::processRpcWithErrors(
        command, type, streams);
  }

  FuturePtr processScriptCall(
      torch_rpc::RpcCommandBase& command, const Streams&) const override {
    auto& call = static_cast<torch_rpc::ScriptCall&>(command);
    auto future = c10::make_intrusive<JitFuture>(
        at::getCustomClassType<c10::intrusive_ptr<Message>>());
    const std::string name = call.qualifiedName().qualifiedName();
    const auto kind = name.starts_with(kOwnNames)
                          ? HandlerThreads::Kind::kUpkeep
                          : HandlerThreads::Kind::kWork;
    threads_->run(
        kind,
        [future,
         name,
         arguments = std::move(call.stackRef()),
         context = Container::currentContextId()]() mutable {
          const ContextScope scope(context);
          const auto result = answer(name, arguments);
          arguments.clear();
          try {
            complete(*future, result);
          } catch (const std::exception& e) {
            // A result that cannot be sent is the handler's failure too.
            complete(*future, failed_answer(e.what()));
          }
        });
    return future;
  }

 private:
  std::shared_ptr<HandlerThreads> threads_;
};

}  // namespace

void refuse(const std::string& what) {
  fail("rpc", what, " is refused: only registered functions can be called");
}

std::unique_ptr<torch_rpc::RequestCallback> make_callback(
    std::shared_ptr<HandlerThreads> threads) {
  return std::make_unique<Callback>(std::move(threads));
}

}  // namespace gradwire::rpc
