#include "gradwire/compat/gloo.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/sigpipe.h"

namespace gradwire::compat {
namespace {

using c10d::ProcessGroupGloo;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

// Gloo all-gathers this much per rank to learn the sizes of sparse tensors.
constexpr std::int64_t kSparseMetadataBytes = 9 * sizeof(std::int64_t);

// A collective under way whose failure says which one it was and where.
class NamedWork : public c10d::Work {
 public:
  // `operation` is a string literal; `where` is shared by all of a group's.
  NamedWork(
      WorkPtr inner,
      const char* operation,
      std::shared_ptr<const std::string> where)
      : inner_(std::move(inner)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::ofTensors())) {
    inner_->getFuture()->addCallback(
        [future = future_, operation, where = std::move(where)](
            c10::ivalue::Future& done) {
          if (done.hasError()) {
            future->setError(std::make_exception_ptr(CommError(concat(
                "[gradwire.comm] ",
                operation,
                *where,
                done.tryRetrieveErrorMessage(),
                kAdvice))));
          } else {
            future->markCompleted(done.constValue());
          }
        });
  }

  bool isCompleted() override {
    return future_->completed();
  }
  bool isSuccess() const override {
    return future_->completed() && !future_->hasError();
  }
  std::exception_ptr exception() const override {
    return future_->hasError() ? future_->exception_ptr() : nullptr;
  }
  std::vector<at::Tensor> result() override {
    return inner_->result();
  }
  // The collective has the group's timeout already; one given here is not
  // longer.
  bool wait(std::chrono::milliseconds) override {
    future_->waitAndThrow();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  static constexpr const char* kAdvice =
      " (a peer is lost or late: rebuild the group or end the process)";

  WorkPtr inner_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class MeteredGloo : public ProcessGroupGloo {
 public:
  MeteredGloo(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int world,
      c10::intrusive_ptr<Options> options,
      const std::string& group,
      std::shared_ptr<ByteMeter> meter)
      : ProcessGroupGloo(store, rank, world, std::move(options)),
        where_(std::make_shared<const std::string>(concat(
            " on group '",
            group,
            "' failed on rank ",
            rank,
            " of ",
            world,
            ": "))),
        meter_(std::move(meter)) {}

  WorkPtr broadcast(
      Tensors& tensors, const c10d::BroadcastOptions& options) override {
    for (const auto& tensor : tensors) {
      meter_->add(
          {.payload = broadcast_bytes(
               rank_,
               size_,
               static_cast<int>(options.rootRank),
               static_cast<std::int64_t>(tensor.nbytes()))});
    }
    return named("broadcast", ProcessGroupGloo::broadcast(tensors, options));
  }

  WorkPtr allreduce(
      Tensors& tensors, const c10d::AllreduceOptions& options) override {
    if (tensors.size() == 1 && tensors[0].is_sparse()) {
      tensors[0] = tensors[0].coalesce();
      count_sparse(tensors[0]);
    } else if (!tensors.empty()) {
      count_dense(tensors[0].numel(), tensors[0].element_size());
    }
    return named("all_reduce", ProcessGroupGloo::allreduce(tensors, options));
  }

  WorkPtr allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override {
    std::int64_t elems = 0;
    for (const auto& tensor : tensors) {
      elems += tensor.numel();
    }
    if (!tensors.empty()) {
      count_dense(elems, tensors[0].element_size());
    }
    return named(
        "all_reduce", ProcessGroupGloo::allreduce_coalesced(tensors, options));
  }

  WorkPtr allgather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    for (const auto& input : inputs) {
      meter_->add(
          {.payload = all_gather_bytes(
               size_, static_cast<std::int64_t>(input.nbytes()))});
    }
    return named(
        "all_gather", ProcessGroupGloo::allgather(outputs, inputs, options));
  }

  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<std::int64_t>& output_counts,
      std::vector<std::int64_t>& input_counts,
      const c10d::AllToAllOptions& options) override {
    const auto total = static_cast<std::int64_t>(input.nbytes());
    const std::int64_t rows = input.dim() > 0 ? input.size(0) : 0;
    const std::int64_t row_bytes = rows > 0 ? total / rows : 0;
    const std::int64_t own =
        input_counts.empty() ? rows / size_ : input_counts.at(rank_);
    meter_->add({.payload = total - own * row_bytes});
    return named(
        "all_to_all",
        ProcessGroupGloo::alltoall_base(
            output, input, output_counts, input_counts, options));
  }

  bool is_own_thread() const {
    return std::ranges::any_of(threads_, [](const std::thread& thread) {
      return thread.get_id() == std::this_thread::get_id();
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return named("barrier", ProcessGroupGloo::barrier(options));
  }

 private:
  WorkPtr named(const char* operation, WorkPtr work) const {
    return c10::make_intrusive<NamedWork>(std::move(work), operation, where_);
  }

  void count_dense(std::int64_t elems, std::int64_t elem_bytes) {
    meter_->add({.payload = all_reduce_bytes(rank_, size_, elems, elem_bytes)});
  }

  // Values are the payload; indices and sizes tell the peers where they go.
  void count_sparse(const at::Tensor& tensor) {
    const auto bytes = [&](const at::Tensor& part) {
      return all_gather_bytes(size_, static_cast<std::int64_t>(part.nbytes()));
    };
    meter_->add(
        {.payload = bytes(tensor._values()),
         .metadata = bytes(tensor._indices()) +
                     all_gather_bytes(size_, kSparseMetadataBytes)});
  }

  std::shared_ptr<const std::string> where_;
  std::shared_ptr<ByteMeter> meter_;
};

ProcessGroupGloo& as_gloo(c10d::Backend& backend) {
  return dynamic_cast<ProcessGroupGloo&>(backend);
}

auto make_device(const GlooOptions& options) {
  if (!options.interface.empty()) {
    return ProcessGroupGloo::createDeviceForInterface(options.interface);
  }
  if (!options.address.empty()) {
    return ProcessGroupGloo::createDeviceForHostname(options.address);
  }
  return ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> find_gloo(
    const c10::intrusive_ptr<c10d::Backend>& backend) {
  // TORCH_DISTRIBUTED_DEBUG=DETAIL wraps backends.
  const auto* wrapper =
      dynamic_cast<const c10d::ProcessGroupWrapper*>(backend.get());
  auto inner = wrapper != nullptr ? wrapper->getWrappedPg() : backend;
  return dynamic_cast<ProcessGroupGloo*>(inner.get()) != nullptr ? inner
                                                                 : nullptr;
}

std::chrono::milliseconds timeout_of(c10d::Backend& gloo) {
  return as_gloo(gloo).getOptions()->timeout;
}

bool is_own_thread(c10d::Backend& gloo) {
  const auto* metered = dynamic_cast<const MeteredGloo*>(&gloo);
  return metered != nullptr && metered->is_own_thread();
}

c10::intrusive_ptr<c10d::Backend> make_gloo(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int world,
    const GlooOptions& options,
    std::shared_ptr<ByteMeter> meter) {
  const SigpipeBlocked no_sigpipe;
  auto gloo = ProcessGroupGloo::Options::create(options.timeout);
  if (options.like) {
    gloo->devices = as_gloo(*options.like).getOptions()->devices;
  } else {
    gloo->devices.push_back(make_device(options));
  }
  return c10::make_intrusive<MeteredGloo>(
      store, rank, world, std::move(gloo), options.group, std::move(meter));
}

}  // namespace gradwire::compat
