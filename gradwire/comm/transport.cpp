#include "gradwire/comm/transport.h"

#include <ATen/ATen.h>

#include "gradwire/base/error.h"
#include "gradwire/comm/callback_scope.h"

namespace gradwire {

std::exception_ptr collective_failure(
    const Origin& origin, const char* operation, const std::string& what) {
  return std::make_exception_ptr(CommError(concat(
      "[gradwire.comm] ",
      operation,
      " on group '",
      origin.group,
      "' failed on rank ",
      origin.rank,
      " of ",
      origin.world,
      ": ",
      what,
      "; a peer is lost or late: rebuild the group or end the process")));
}

Transport::Transport(Origin origin, std::shared_ptr<ByteMeter> meter)
    : origin_(std::make_shared<const Origin>(std::move(origin))),
      meter_(std::move(meter)) {}

Future Transport::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  if (tensor.is_sparse()) {
    const at::Tensor coalesced = tensor.coalesce();
    count_sparse(coalesced);
    return start_all_reduce(coalesced, op);
  }
  meter_->add(
      {.payload = all_reduce_bytes(tensor.numel(), tensor.element_size())});
  return start_all_reduce(tensor, op);
}

Future Transport::broadcast(const at::Tensor& tensor, int root) {
  meter_->add(
      {.payload =
           broadcast_bytes(root, static_cast<std::int64_t>(tensor.nbytes()))});
  return start_broadcast(tensor, root);
}

Future Transport::all_gather(
    const at::Tensor& output, const at::Tensor& input) {
  meter_->add(
      {.payload = all_gather_bytes(static_cast<std::int64_t>(input.nbytes()))});
  return start_all_gather(output, input);
}

Future Transport::all_to_all(const AllToAll& exchange) {
  const at::Tensor& input = exchange.input;
  const auto total = static_cast<std::int64_t>(input.nbytes());
  const std::int64_t rows = input.dim() > 0 ? input.size(0) : 0;
  const std::int64_t row_bytes = rows > 0 ? total / rows : 0;
  const std::int64_t own = exchange.input_rows.empty()
                               ? rows / origin_->world
                               : exchange.input_rows.at(origin_->rank);
  meter_->add(
      {.payload = total - own * row_bytes - exchange.metadata_bytes,
       .metadata = exchange.metadata_bytes});
  return start_all_to_all(exchange);
}

Future Transport::barrier() {
  return start_barrier();
}

// Values are the payload; indices and sizes tell the peers where they go.
void Transport::count_sparse(const at::Tensor& tensor) {
  const auto bytes = [&](const at::Tensor& part) {
    return all_gather_bytes(static_cast<std::int64_t>(part.nbytes()));
  };
  meter_->add(
      {.payload = bytes(tensor._values()),
       .metadata =
           bytes(tensor._indices()) + all_gather_bytes(sparse_header_bytes())});
}

Future Transport::named(
    const char* operation,
    const Future::Raw& collective,
    const at::Tensor& result) const {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
  collective->addCallback(
      [future, operation, result, origin = origin_](c10::ivalue::Future& done) {
        const CallbackScope callbacks;
        if (done.hasError()) {
          future->setError(collective_failure(
              *origin, operation, done.tryRetrieveErrorMessage()));
        } else if (result.defined()) {
          future->markCompleted(std::vector<at::Tensor>{result});
        } else {
          future->markCompleted(done.constValue());
        }
      });
  return Future(future);
}

}  // namespace gradwire
