// A Transport as c10d's Reducer wants it.

#include <ATen/ATen.h>

#include "gradwire/base/error.h"
#include "gradwire/comm/transport_impl.h"

namespace gradwire {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using TensorList = std::vector<at::Tensor>;

class FutureWork final : public c10d::Work {
 public:
  explicit FutureWork(const Future& future) : future_(future.raw()) {}

  bool isCompleted() override {
    return future_->completed();
  }
  bool isSuccess() const override {
    return future_->completed() && !future_->hasError();
  }
  std::exception_ptr exception() const override {
    return future_->hasError() ? future_->exception_ptr() : nullptr;
  }
  TensorList result() override {
    future_->waitAndThrow();
    return future_->constValue().toTensorVector();
  }
  // The collective has the group's timeout already; one given here is not
  // longer.
  bool wait(std::chrono::milliseconds) override {
    future_->waitAndThrow();
    return true;
  }
  Future::Raw getFuture() override {
    return future_;
  }

 private:
  Future::Raw future_;
};

WorkPtr as_work(const Future& future) {
  return c10::make_intrusive<FutureWork>(future);
}

ReduceOp to_reduce_op(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    default:
      fail(
          "comm",
          "all_reduce got operation ",
          static_cast<int>(op.op_),
          " of c10d, expected SUM, MIN, MAX or PRODUCT");
  }
}

const at::Tensor& only(const char* operation, const TensorList& tensors) {
  if (tensors.size() != 1) {
    fail("comm", operation, " got ", tensors.size(), " tensors, expected one");
  }
  return tensors[0];
}

class TransportBackend final : public c10d::Backend {
 public:
  explicit TransportBackend(std::shared_ptr<Transport> transport)
      : c10d::Backend(transport->origin().rank, transport->origin().world),
        transport_(std::move(transport)) {}

  const std::shared_ptr<Transport>& transport() const {
    return transport_;
  }

  const std::string getBackendName() const override {
    return "gradwire";
  }

  WorkPtr broadcast(
      TensorList& tensors, const c10d::BroadcastOptions& options) override {
    return as_work(transport_->broadcast(
        only("broadcast", tensors), static_cast<int>(options.rootRank)));
  }

  WorkPtr allreduce(
      TensorList& tensors, const c10d::AllreduceOptions& options) override {
    return as_work(transport_->all_reduce(
        only("all_reduce", tensors), to_reduce_op(options.reduceOp)));
  }

  WorkPtr _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions&) override {
    return as_work(transport_->all_gather(output, input));
  }

  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<std::int64_t>& output_rows,
      std::vector<std::int64_t>& input_rows,
      const c10d::AllToAllOptions&) override {
    return as_work(
        transport_->all_to_all({output, input, output_rows, input_rows}));
  }

  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return as_work(transport_->barrier());
  }

 private:
  std::shared_ptr<Transport> transport_;
};

}  // namespace

BackendPtr make_backend(std::shared_ptr<Transport> transport) {
  return c10::make_intrusive<TransportBackend>(std::move(transport));
}

std::shared_ptr<Transport> transport_of(const BackendPtr& backend) {
  const auto* own = dynamic_cast<const TransportBackend*>(backend.get());
  return own != nullptr ? own->transport() : nullptr;
}

}  // namespace gradwire
