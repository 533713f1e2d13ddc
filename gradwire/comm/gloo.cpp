// Transport "gloo": tensors of the CPU over TCP sockets.

#include "gradwire/comm/gloo.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/sigpipe.h"
#include "gradwire/comm/transport_impl.h"

namespace gradwire {
namespace gloo {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Gloo cuts a ring buffer into one chunk a rank and a chunk into at least two
// segments of at most 1 MiB; a segment is a whole number of elements.
std::int64_t ring_chunk_bytes(
    int world, std::int64_t total_bytes, std::int64_t elem_bytes) {
  constexpr std::int64_t kMostSegmentBytes = std::int64_t{1} << 20;
  const std::int64_t most =
      elem_bytes * std::max<std::int64_t>(1, kMostSegmentBytes / elem_bytes);
  const std::int64_t wanted = std::max<std::int64_t>(
      divide_up(total_bytes, most), std::int64_t{2} * world);
  const std::int64_t segments = divide_up(wanted, world) * world;
  const std::int64_t segment_bytes =
      divide_up(divide_up(total_bytes, segments), elem_bytes) * elem_bytes;
  return segment_bytes * (segments / world);
}

}  // namespace

std::int64_t all_reduce_bytes(
    int rank, int world, std::int64_t elems, std::int64_t elem_bytes) {
  if (world == 1 || elems == 0) {
    return 0;
  }
  const std::int64_t total = elems * elem_bytes;
  const std::int64_t chunk = ring_chunk_bytes(world, total, elem_bytes);
  const auto length = [&](int index) {
    return std::clamp<std::int64_t>(total - index * chunk, 0, chunk);
  };
  return 2 * total - length(rank) - length((rank + world - 1) % world);
}

std::int64_t broadcast_bytes(
    int rank, int world, int root, std::int64_t buffer_bytes) {
  // Ranks counted from the root: in round i those below 2^i hold the buffer
  // and send it 2^i further on.
  const int distance = (rank - root + world) % world;
  std::int64_t children = 0;
  for (int reach = 1; reach < world; reach *= 2) {
    if (distance < reach && distance + reach < world) {
      ++children;
    }
  }
  return children * buffer_bytes;
}

std::int64_t all_gather_bytes(int world, std::int64_t contribution_bytes) {
  return (world - 1) * contribution_bytes;
}

}  // namespace gloo

namespace {

using c10d::ProcessGroupGloo;
using TensorList = std::vector<at::Tensor>;

c10d::ReduceOp::RedOpType to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
  }
  fail("comm", "unknown ReduceOp ", static_cast<int>(op));
}

// Torch's, whose threads are looked at.
class Connections final : public ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  bool is_own_thread() const {
    return std::ranges::any_of(threads_, [](const std::thread& thread) {
      return thread.get_id() == std::this_thread::get_id();
    });
  }
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(
      const StorePtr& store,
      const TransportOptions& options,
      c10::intrusive_ptr<ProcessGroupGloo::Options> gloo)
      : Transport(options.origin, options.meter),
        gloo_(c10::make_intrusive<Connections>(
            store, origin().rank, origin().world, std::move(gloo))) {}

  c10::Device device() const override {
    return c10::DeviceType::CPU;
  }
  bool is_own_thread() const override {
    return gloo_->is_own_thread();
  }
  const c10::intrusive_ptr<Connections>& connections() const {
    return gloo_;
  }

  std::int64_t all_reduce_bytes(
      std::int64_t elems, std::int64_t elem_bytes) const override {
    return gloo::all_reduce_bytes(
        origin().rank, origin().world, elems, elem_bytes);
  }

 protected:
  Future start_all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op);
    TensorList tensors{tensor};
    return named("all_reduce", gloo_->allreduce(tensors, options)->getFuture());
  }

  Future start_broadcast(const at::Tensor& tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    TensorList tensors{tensor};
    return named("broadcast", gloo_->broadcast(tensors, options)->getFuture());
  }

  // Gloo gathers into a list: one slice of the output a rank.
  Future start_all_gather(
      const at::Tensor& output, const at::Tensor& input) override {
    std::vector<TensorList> slices{
        output.view({origin().world, input.numel()}).unbind(0)};
    TensorList inputs{input.view({input.numel()})};
    return named(
        "all_gather",
        gloo_->allgather(slices, inputs, {})->getFuture(),
        output);
  }

  // Gloo empties the counts.
  Future start_all_to_all(const AllToAll& exchange) override {
    at::Tensor output = exchange.output;
    at::Tensor input = exchange.input;
    auto output_rows = exchange.output_rows;
    auto input_rows = exchange.input_rows;
    return named(
        "all_to_all",
        gloo_->alltoall_base(output, input, output_rows, input_rows, {})
            ->getFuture(),
        output);
  }

  Future start_barrier() override {
    return named("barrier", gloo_->barrier({})->getFuture());
  }

  std::int64_t broadcast_bytes(
      int root, std::int64_t buffer_bytes) const override {
    return gloo::broadcast_bytes(
        origin().rank, origin().world, root, buffer_bytes);
  }
  std::int64_t all_gather_bytes(
      std::int64_t contribution_bytes) const override {
    return gloo::all_gather_bytes(origin().world, contribution_bytes);
  }
  std::int64_t sparse_header_bytes() const override {
    return 9 * sizeof(std::int64_t);
  }

 private:
  c10::intrusive_ptr<Connections> gloo_;
};

ProcessGroupGloo* as_gloo(const BackendPtr& backend) {
  return dynamic_cast<ProcessGroupGloo*>(backend.get());
}

auto make_device(const TransportOptions& options) {
  if (!options.interface.empty()) {
    return ProcessGroupGloo::createDeviceForInterface(options.interface);
  }
  if (!options.address.empty()) {
    return ProcessGroupGloo::createDeviceForHostname(options.address);
  }
  return ProcessGroupGloo::createDefaultDevice();
}

std::shared_ptr<Transport> make_gloo(
    const StorePtr& store, const TransportOptions& options) {
  const SigpipeBlocked no_sigpipe;
  auto gloo = ProcessGroupGloo::Options::create(options.timeout);
  if (options.like) {
    gloo->devices = as_gloo(options.like)->getOptions()->devices;
  } else {
    gloo->devices.push_back(make_device(options));
  }
  return std::make_shared<GlooTransport>(store, options, std::move(gloo));
}

std::optional<FoundBackend> find_gloo(const BackendPtr& backend) {
  BackendPtr inner = backend;
  // TORCH_DISTRIBUTED_DEBUG=DETAIL wraps backends.
  if (const auto* wrapper =
          dynamic_cast<const c10d::ProcessGroupWrapper*>(backend.get())) {
    inner = wrapper->getWrappedPg();
  } else if (
      const auto own =
          std::dynamic_pointer_cast<GlooTransport>(transport_of(backend))) {
    inner = own->connections();
  }
  if (auto* gloo = as_gloo(inner)) {
    return FoundBackend{inner, gloo->getOptions()->timeout};
  }
  return std::nullopt;
}

}  // namespace

TransportRow gloo_transport() {
  return {
      .info = {"gloo", "processes over TCP sockets", {c10::DeviceType::CPU}},
      .wanted =
          "a Gloo backend for the cpu: make it with "
          "init_process_group(\"gloo\") or \"cpu:gloo,cuda:nccl\"",
      .make = make_gloo,
      .find = find_gloo};
}

}  // namespace gradwire
