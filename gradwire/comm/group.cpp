#include "gradwire/comm/group.h"

#include <algorithm>
#include <numeric>

#include "gradwire/base/error.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

void check_tensor(
    const char* operation,
    const Transport& transport,
    const at::Tensor& tensor) {
  if (!tensor.defined()) {
    fail("comm", operation, " got an undefined tensor");
  }
  if (tensor.device() != transport.device()) {
    fail(
        "comm",
        operation,
        " got a tensor on ",
        tensor.device().str(),
        ", expected ",
        transport.device().str(),
        ", where the group's transport moves them");
  }
}

void check_contiguous(
    const char* operation,
    const Transport& transport,
    const at::Tensor& tensor) {
  check_tensor(operation, transport, tensor);
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
    fail(
        "comm",
        operation,
        " got a tensor of strides ",
        tensor.is_sparse() ? std::string("(sparse)") : concat(tensor.strides()),
        ", expected a contiguous one");
  }
}

// Transports move raw memory in storage order: any dense layout will do, holes
// and overlaps will not.
void check_dense(
    const char* operation,
    const Transport& transport,
    const at::Tensor& tensor) {
  check_tensor(operation, transport, tensor);
  if (tensor.layout() != at::kStrided ||
      !tensor.is_non_overlapping_and_dense()) {
    fail(
        "comm",
        operation,
        " got a tensor with holes or overlaps of sizes ",
        tensor.sizes(),
        ", expected one that is dense in memory");
  }
}

void check_rows(
    const char* which,
    const std::vector<std::int64_t>& rows,
    const at::Tensor& tensor,
    int world) {
  const std::int64_t have = tensor.dim() > 0 ? tensor.size(0) : 0;
  if (rows.empty()) {
    if (have % world != 0) {
      fail(
          "comm",
          "all_to_all without counts needs ",
          which,
          " rows divisible by ",
          world,
          ", got ",
          have);
    }
    return;
  }
  const auto sum = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  if (static_cast<int>(rows.size()) != world || sum != have ||
      std::ranges::any_of(rows, [](auto count) { return count < 0; })) {
    fail(
        "comm",
        "all_to_all got ",
        which,
        " counts [",
        join(rows),
        "] for ",
        have,
        " rows, expected ",
        world,
        " counts that add up to it");
  }
}

void check_exchange(
    const Transport& transport, const Transport::AllToAll& exchange) {
  check_contiguous("all_to_all", transport, exchange.input);
  check_contiguous("all_to_all", transport, exchange.output);
  const int world = transport.origin().world;
  check_rows("output", exchange.output_rows, exchange.output, world);
  check_rows("input", exchange.input_rows, exchange.input, world);
}

// What Torch refuses at submission (a type it cannot sum, say) comes back as
// our Error.
template <class Submit>
Future submit(const char* operation, const Submit& collective) {
  try {
    return collective();
  } catch (const c10::Error& e) {
    fail("comm", operation, " was refused: ", e.what_without_backtrace());
  }
}

}  // namespace

Group::Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Group::Impl& Group::impl() const {
  if (!impl_) {
    fail("comm", "this group is empty: the calling rank is not a member of it");
  }
  return *impl_;
}

int Group::rank() const {
  return impl().origin.rank;
}

int Group::size() const {
  return impl().origin.world;
}

const std::string& Group::name() const {
  return impl().options.name;
}

std::chrono::milliseconds Group::timeout() const {
  return impl().options.timeout;
}

Bytes Group::bytes_sent() const {
  return impl().meter->read();
}

c10::Device Group::device() const {
  return impl().transport->device();
}

std::int64_t Group::all_reduce_bytes(
    std::int64_t elems, std::int64_t elem_bytes) const {
  return impl().transport->all_reduce_bytes(elems, elem_bytes);
}

Future Group::all_reduce(at::Tensor tensor, ReduceOp op) const {
  Transport& transport = *impl().transport;
  if (tensor.defined() && tensor.is_sparse()) {
    check_tensor("all_reduce", transport, tensor);
  } else {
    check_dense("all_reduce", transport, tensor);
  }
  return submit("all_reduce", [&] { return transport.all_reduce(tensor, op); });
}

Future Group::broadcast(at::Tensor tensor, int root) const {
  Transport& transport = *impl().transport;
  check_dense("broadcast", transport, tensor);
  if (root < 0 || root >= size()) {
    fail("comm", "broadcast got root ", root, ", expected 0 to ", size() - 1);
  }
  return submit("broadcast", [&] { return transport.broadcast(tensor, root); });
}

Future Group::all_gather(at::Tensor output, at::Tensor input) const {
  Transport& transport = *impl().transport;
  check_contiguous("all_gather", transport, input);
  check_contiguous("all_gather", transport, output);
  if (output.numel() != input.numel() * size() ||
      output.scalar_type() != input.scalar_type()) {
    fail(
        "comm",
        "all_gather got an output of ",
        output.numel(),
        " ",
        output.scalar_type(),
        ", expected ",
        input.numel() * size(),
        " ",
        input.scalar_type());
  }
  return submit(
      "all_gather", [&] { return transport.all_gather(output, input); });
}

Future Group::all_to_all(
    at::Tensor output,
    at::Tensor input,
    std::vector<std::int64_t> output_rows,
    std::vector<std::int64_t> input_rows) const {
  return all_to_all_messages(
      *this,
      std::move(output),
      std::move(input),
      std::move(output_rows),
      std::move(input_rows),
      0);
}

Future Group::barrier() const {
  return submit("barrier", [&] { return impl().transport->barrier(); });
}

Future all_to_all_messages(
    const Group& group,
    at::Tensor output,
    at::Tensor input,
    std::vector<std::int64_t> output_bytes,
    std::vector<std::int64_t> input_bytes,
    std::int64_t metadata_bytes) {
  Transport& transport = *group.impl().transport;
  const Transport::AllToAll exchange{
      std::move(output),
      std::move(input),
      std::move(output_bytes),
      std::move(input_bytes),
      metadata_bytes};
  check_exchange(transport, exchange);
  return submit("all_to_all", [&] { return transport.all_to_all(exchange); });
}

}  // namespace gradwire
