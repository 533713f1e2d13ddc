#include "gradwire/rpc/callback.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>

#include "gradwire/base/error.h"
#include "gradwire/rpc/answer.h"
#include "gradwire/rpc/functions_impl.h"
#include "gradwire/rpc/messages.h"

namespace gradwire::rpc {
namespace {

namespace torch_rpc = torch::distributed::rpc;

using torch_rpc::JitFuture;
using torch_rpc::Message;
using Container = torch::distributed::autograd::DistAutogradContainer;
using Streams = std::vector<c10::Stream>;
using FuturePtr = c10::intrusive_ptr<JitFuture>;

// Sets the thread's context to the one of the call.
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
      const auto command = read_request(request);
      return processRpcWithErrors(*command, request.type(), streams)
          ->then(
              [id = request.id()](JitFuture& answered) {
                const auto answer = answered.value().toCustomClass<Message>();
                answer->setId(id);
                return torch_rpc::withStorages(answer);
              },
              at::getCustomClassType<c10::intrusive_ptr<Message>>());
    } catch (const std::exception& e) {
      return asFuture(handleError(e, request.type(), request.id()));
    }
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
    try {
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
              // A result that cannot be sent is a failure of the handler.
              complete(*future, failed_answer(e.what()));
            }
          });
    } catch (const Error& e) {
      complete(*future, failed_answer(e.what()));
    }
    return future;
  }

 private:
  std::shared_ptr<HandlerThreads> threads_;
};

}  // namespace

std::unique_ptr<torch_rpc::RequestCallback> make_callback(
    std::shared_ptr<HandlerThreads> threads) {
  return std::make_unique<Callback>(std::move(threads));
}

}  // namespace gradwire::rpc
