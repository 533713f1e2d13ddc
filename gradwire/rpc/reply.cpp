#include "gradwire/rpc/reply.h"

#include <torch/csrc/distributed/rpc/script_resp.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <mutex>
#include <optional>

#include "gradwire/rpc/agent_impl.h"
#include "gradwire/rpc/answer.h"
#include "gradwire/rpc/rpc.h"

namespace gradwire::rpc::detail {
namespace {

namespace torch_rpc = torch::distributed::rpc;

[[noreturn]] void throw_failure(
    const c10::ivalue::Future& future, const RawReply::Call& call) {
  const std::string what =
      concat("'", call.function, "' on worker '", call.worker, "'");
  if (torch_rpc::getRPCErrorType(future) == torch_rpc::TIMEOUT) {
    throw CommError(concat(
        "[gradwire.rpc] ",
        what,
        " gave no answer within ",
        call.timeout.count() / 1000.0,
        " s (worker '",
        call.caller,
        "' waited)"));
  }
  std::string text = future.tryRetrieveErrorMessage();
  text = text.substr(0, text.find('\n'));
  if (!is_transport_failure(text)) {
    throw RemoteError(concat("[gradwire.rpc] ", what, " failed: ", text));
  }
  throw CommError(concat(
      "[gradwire.rpc] ",
      what,
      " cannot be reached, the worker is lost or has left: ",
      text,
      " (worker '",
      call.caller,
      "' called)"));
}

c10::IValue read(
    const c10::ivalue::Future& future, const RawReply::Call& call) {
  if (future.hasError()) {
    throw_failure(future, call);
  }
  const auto message = future.constValue().toCustomClass<torch_rpc::Message>();
  auto type = message->type();
  const auto response = torch_rpc::deserializeResponse(*message, type);
  if (type != torch_rpc::MessageType::SCRIPT_RET) {
    fail(
        "rpc",
        "worker '",
        call.worker,
        "' answered with a message of type ",
        type);
  }
  return result_of(
      static_cast<torch_rpc::ScriptResp&>(*response).value(),
      concat("'", call.function, "' on worker '", call.worker, "' failed"));
}

}  // namespace

// Reading a response adds it to the graph of its context, so it is done once.
struct RawReply::State {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  Call call;
  std::mutex mutex;
  std::optional<c10::IValue> value;
};

RawReply::RawReply(c10::intrusive_ptr<c10::ivalue::Future> future, Call call)
    : state_(std::make_shared<State>()) {
  state_->future = std::move(future);
  state_->call = std::move(call);
}

bool RawReply::done() const {
  return state_->future->completed();
}

c10::IValue RawReply::wait() const {
  state_->future->wait();
  const std::lock_guard lock(state_->mutex);
  if (!state_->value) {
    state_->value = read(*state_->future, state_->call);
  }
  return *state_->value;
}

void RawReply::keep_until_done(std::shared_ptr<const void> kept) const {
  state_->future->addCallback(
      [kept = std::move(kept)](c10::ivalue::Future&) mutable {
        end_elsewhere(std::move(kept));
      });
}

}  // namespace gradwire::rpc::detail
