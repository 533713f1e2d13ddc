#include "gradwire/comm/group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "gradwire/base/error.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

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

void check_tensor(const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    fail("comm", operation, " got an undefined tensor");
  }
  if (!tensor.device().is_cpu()) {
    fail(
        "comm",
        operation,
        " got a tensor on ",
        tensor.device().str(),
        ", expected cpu: this build has no other backend");
  }
}

void check_contiguous(const char* operation, const at::Tensor& tensor) {
  check_tensor(operation, tensor);
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
    fail(
        "comm",
        operation,
        " got a tensor of strides ",
        tensor.is_sparse() ? std::string("(sparse)") : concat(tensor.strides()),
        ", expected a contiguous one");
  }
}

// Gloo reads raw memory in storage order: any dense layout will do, holes and
// overlaps will not.
void check_dense(const char* operation, const at::Tensor& tensor) {
  check_tensor(operation, tensor);
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

// What Torch refuses at submission (a type it cannot sum, say) comes back as
// our Error.
template <class Submit>
Future submit(const char* operation, const Submit& collective) {
  try {
    return Future(collective()->getFuture());
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

Future Group::all_reduce(at::Tensor tensor, ReduceOp op) const {
  if (tensor.defined() && tensor.is_sparse()) {
    check_tensor("all_reduce", tensor);
  } else {
    check_dense("all_reduce", tensor);
  }
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(op);
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return submit("all_reduce", [&] {
    return impl().backend->allreduce(tensors, options);
  });
}

Future Group::broadcast(at::Tensor tensor, int root) const {
  check_dense("broadcast", tensor);
  if (root < 0 || root >= size()) {
    fail("comm", "broadcast got root ", root, ", expected 0 to ", size() - 1);
  }
  c10d::BroadcastOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return submit(
      "broadcast", [&] { return impl().backend->broadcast(tensors, options); });
}

Future Group::all_gather(at::Tensor output, at::Tensor input) const {
  check_contiguous("all_gather", input);
  check_contiguous("all_gather", output);
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
  // Gloo gathers into a list: one slice of the output a rank.
  const auto slices = output.view({size(), input.numel()}).unbind(0);
  std::vector<std::vector<at::Tensor>> outputs{slices};
  std::vector<at::Tensor> inputs{input.view({input.numel()})};
  return submit(
             "all_gather",
             [&] { return impl().backend->allgather(outputs, inputs); })
      .then([output](const at::Tensor&) { return output; });
}

Future Group::all_to_all(
    at::Tensor output,
    at::Tensor input,
    std::vector<std::int64_t> output_rows,
    std::vector<std::int64_t> input_rows) const {
  check_contiguous("all_to_all", input);
  check_contiguous("all_to_all", output);
  check_rows("output", output_rows, output, size());
  check_rows("input", input_rows, input, size());
  return submit(
             "all_to_all",
             [&] {
               return impl().backend->alltoall_base(
                   output, input, output_rows, input_rows);
             })
      .then([output](const at::Tensor&) { return output; });
}

Future Group::barrier() const {
  return submit("barrier", [&] { return impl().backend->barrier(); });
}

}  // namespace gradwire
