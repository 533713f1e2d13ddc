#include "gradwire/comm/group.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <numeric>
#include <set>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/compat/gloo.h"

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

Group make_child(
    const Group::Impl& parent,
    const std::string& name,
    int rank,
    int world,
    std::chrono::milliseconds timeout,
    std::shared_ptr<ByteMeter> meter = nullptr) {
  GroupOptions options = parent.options;
  options.name = name;
  options.timeout = timeout;
  options.meter = std::move(meter);
  auto store =
      c10::make_intrusive<c10d::PrefixStore>(name, parent.store->clone());
  return make_group(std::move(store), rank, world, options);
}

// The last reference to a group may be held by a callback that one of its own
// threads runs: such a group is taken apart on another thread.
void destroy(Group::Impl* impl) {
  const bool own_thread =
      (impl->backend && compat::is_own_thread(*impl->backend)) ||
      (impl->compressed && is_own_thread(*impl->compressed));
  if (own_thread) {
    std::thread([impl] { delete impl; }).detach();
  } else {
    delete impl;
  }
}

}  // namespace

Group make_group(
    StorePtr store, int rank, int world, const GroupOptions& options) {
  auto impl = std::shared_ptr<Group::Impl>(new Group::Impl, destroy);
  impl->options = options;
  impl->store = store;
  impl->origin = {options.name, rank, world};
  impl->meter = options.meter ? options.meter : std::make_shared<ByteMeter>();
  const auto gloo_store = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
  const compat::GlooOptions gloo{
      options.name,
      options.timeout,
      options.interface,
      options.address,
      options.like};
  try {
    impl->backend =
        compat::make_gloo(gloo_store, rank, world, gloo, impl->meter);
    // A rank that is done with its group at once must not close connections
    // that others are still making.
    impl->backend->barrier()->wait();
  } catch (const std::exception& e) {
    throw CommError(concat(
        "[gradwire.comm] group '",
        options.name,
        "' of ",
        world,
        " ranks could not connect: ",
        first_line(e.what()),
        " (rank ",
        rank,
        ")"));
  }
  impl->process_group =
      c10::make_intrusive<c10d::ProcessGroup>(gloo_store, rank, world);
  impl->process_group->setBackend(
      c10::DeviceType::CPU,
      c10d::ProcessGroup::BackendType::GLOO,
      impl->backend);
  impl->process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return Group(std::move(impl));
}

Group duplicate_counted(const Group& parent, const std::string& label) {
  Group::Impl& impl = parent.impl();
  const int number = impl.children++;
  return make_child(
      impl,
      concat(parent.name(), "/", label, number),
      parent.rank(),
      parent.size(),
      parent.timeout(),
      impl.meter);
}

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

Group Group::subgroup(
    const std::vector<int>& ranks,
    std::optional<std::chrono::milliseconds> timeout) const {
  const std::string list = join(ranks);
  agree(*this, "subgroup", {{"ranks", list}});
  const int number = impl().children++;
  if (ranks.empty() ||
      std::set(ranks.begin(), ranks.end()).size() != ranks.size()) {
    fail(
        "comm",
        "subgroup got ranks [",
        list,
        "], expected at least one and none twice");
  }
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size()) {
      fail(
          "comm",
          "subgroup got ranks [",
          list,
          "], expected 0 to ",
          size() - 1);
    }
  }
  const auto me = std::ranges::find(ranks, rank());
  if (me == ranks.end()) {
    return {};
  }
  return make_child(
      impl(),
      concat(name(), "/sub", number),
      static_cast<int>(me - ranks.begin()),
      static_cast<int>(ranks.size()),
      timeout.value_or(this->timeout()));
}

Group Group::duplicate(const std::string& label) const {
  const int number = impl().children++;
  return make_child(
      impl(), concat(name(), "/", label, number), rank(), size(), timeout());
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
