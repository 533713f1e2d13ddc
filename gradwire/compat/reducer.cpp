#include "gradwire/compat/reducer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace gradwire::compat {
namespace {

// The Reducer keeps the parameters of every bucket once buckets were rebuilt,
// and goes on to name them when it has other buckets. An explicit instantiation
// may name what is private.
using VariablesByBucket =
    std::unordered_map<std::size_t, std::vector<at::Tensor>>;
template <VariablesByBucket c10d::Reducer::*Member>
struct CachedVariables {
  friend VariablesByBucket& cached_variables(c10d::Reducer& reducer) {
    return reducer.*Member;
  }
};
template struct CachedVariables<&c10d::Reducer::cached_variables_for_bucket_>;
VariablesByBucket& cached_variables(c10d::Reducer& reducer);

// Before the order in which gradients become ready is known, everything goes
// into one bucket; it is cut up by that order before the second forward. With
// find_unused_parameters the Reducer never rebuilds, so the caps apply at once.
std::vector<std::vector<std::size_t>> first_buckets(
    const ReducerOptions& options) {
  const bool rebuilds = options.static_graph || !options.find_unused_parameters;
  const auto limits =
      rebuilds
          ? std::vector<std::size_t>{std::numeric_limits<std::size_t>::max()}
          : std::vector<std::size_t>{
                static_cast<std::size_t>(options.first_bucket_bytes),
                static_cast<std::size_t>(options.bucket_bytes)};
  auto indices = std::get<0>(c10d::compute_bucket_assignment_by_size(
      options.parameters, limits, options.sparse));
  std::ranges::reverse(indices);  // backward starts at the last layer
  return indices;
}

// The gradient of an embedding from which nothing was read.
at::Tensor empty_rows(const at::Tensor& parameter) {
  auto values = parameter.sizes().vec();
  values[0] = 0;
  return at::sparse_coo_tensor(
             at::zeros({1, 0}, at::kLong),
             at::zeros(values, parameter.options().requires_grad(false)),
             parameter.sizes())
      ._coalesced_(true);
}

// Reads what the Reducer keeps to itself and its Logger.
struct Counters : c10d::Reducer {
  static std::int64_t iterations(const c10d::Reducer& reducer) {
    return reducer.*(&Counters::num_iterations_);
  }
  static bool may_leave_unused(const c10d::Reducer& reducer) {
    return reducer.*(&Counters::find_unused_parameters_) ||
           reducer.*(&Counters::static_graph_);
  }
  static const at::Tensor& used(const c10d::Reducer& reducer) {
    return reducer.*(&Counters::local_used_map_);
  }
  static bool has_context(const c10d::Reducer& reducer) {
    return (reducer.*(&Counters::rpc_context_)).context_ptr.load() != nullptr;
  }
};

// The Reducer takes the divisor from the result of a collective.
class Divisor final : public c10d::Work {
 public:
  explicit Divisor(int value)
      : future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::ofTensors())) {
    future_->markCompleted(
        std::vector<at::Tensor>{at::scalar_tensor(value, at::kLong)});
  }
  bool wait(std::chrono::milliseconds) override {
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace

ReducerPair make_reducer(
    const ReducerOptions& options,
    c10::intrusive_ptr<c10d::ProcessGroup> group) {
  std::unordered_map<std::size_t, std::string> names;
  for (const auto& name : options.names) {
    names.emplace(names.size(), name);
  }
  ReducerPair pair;
  pair.reducer = std::make_shared<c10d::Reducer>(
      options.parameters,
      first_buckets(options),
      std::move(group),
      options.sparse,
      options.bucket_bytes,
      options.find_unused_parameters,
      options.gradient_as_bucket_view,
      std::move(names),
      options.first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  pair.logger = std::make_shared<c10d::Logger>(pair.reducer);
  pair.reducer->set_logger(pair.logger);
  if (options.static_graph) {
    pair.reducer->set_static_graph();
  }
  return pair;
}

void set_buckets(
    c10d::Reducer& reducer, std::vector<std::vector<std::size_t>> buckets) {
  reducer.initialize_buckets(std::move(buckets));
  cached_variables(reducer).clear();
}

std::int64_t synced_forwards(const c10d::Reducer& reducer) {
  return Counters::iterations(reducer);
}

bool has_gradient(const c10d::Reducer& reducer, std::size_t index) {
  return !Counters::may_leave_unused(reducer) ||
         Counters::used(reducer).const_data_ptr<int>()[index] != 0;
}

bool in_dist_autograd(const c10d::Reducer& reducer) {
  return Counters::has_context(reducer);
}

std::vector<c10d::GradBucket> zero_buckets(const c10d::Reducer& reducer) {
  auto buckets = reducer.get_grad_buckets(/*return_zero_tensors=*/false);
  for (auto& bucket : buckets) {
    const at::Tensor& buffer = bucket.getBuffer();
    at::Tensor zeros = buffer.defined() && !buffer.is_sparse()
                           ? at::zeros_like(buffer)
                           : empty_rows(bucket.getParameters().front());
    bucket.setBuffer(zeros);
  }
  return buckets;
}

void set_divisor(c10d::Reducer& reducer, int divisor) {
  auto work = divisor > 0 ? c10::make_intrusive<Divisor>(divisor) : nullptr;
  reducer.set_forward_pass_work_handle(
      std::move(work), /*useStaticWorldSize=*/divisor == 0);
}

void reset(c10d::Reducer& reducer) {
  reducer.reset_state();
}

}  // namespace gradwire::compat
