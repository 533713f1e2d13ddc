#include "gradwire/rpc/reply.h"

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include "gradwire/rpc/agent_impl.h"
#include "gradwire/rpc/answer.h"
#include "gradwire/rpc/messages.h"
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
        static_cast<double>(call.timeout.count()) / 1000.0,
        " s (worker '",
        call.caller,
        "' waited)"));
  }
  const std::string text = first_line(future.tryRetrieveErrorMessage());
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

}  // namespace

RawReply::RawReply(c10::intrusive_ptr<c10::ivalue::Future> future, Call call)
    : future_(std::move(future)), call_(std::move(call)) {}

bool RawReply::done() const {
  return future_->completed();
}

c10::IValue RawReply::read() const {
  future_->wait();
  if (future_->hasError()) {
    throw_failure(*future_, call_);
  }
  const auto message =
      future_->constValue().toCustomClass<torch_rpc::Message>();
  return result_of(
      read_response(*message),
      concat("'", call_.function, "' on worker '", call_.worker, "' failed"));
}

void RawReply::keep_until_done(std::shared_ptr<const void> kept) const {
  future_->addCallback([kept = std::move(kept)](c10::ivalue::Future&) mutable {
    end_elsewhere(std::move(kept));
  });
}

}  // namespace gradwire::rpc::detail
