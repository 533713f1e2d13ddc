#include "gradwire/optim/tensor_exchange.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"

namespace gradwire {
namespace {

// As large as DDP's buckets are by default.
constexpr std::int64_t kBucketBytes = 25 << 20;

at::ScalarType room_type(const NamedTensor& named) {
  const at::Tensor& tensor = named.tensor;
  const auto type = c10::toRealValueType(tensor.scalar_type());
  if (!c10::isFloatingType(type) || tensor.is_sparse()) {
    fail(
        "optim",
        "'",
        named.name,
        "' is ",
        tensor.is_sparse() ? "sparse" : concat("of ", type),
        ", expected a dense tensor of floats");
  }
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

// Tensors that share a buffer.
struct PlannedBucket {
  at::ScalarType type;
  std::vector<std::size_t> members;
  std::int64_t elems = 0;

  bool is_full() const {
    return elems * static_cast<std::int64_t>(c10::elementSize(type)) >=
           kBucketBytes;
  }
};

// A bucket has tensors of one type, in their order.
std::vector<PlannedBucket> plan_buckets(const NamedTensorList& tensors) {
  std::vector<PlannedBucket> plan;
  for (const auto type : {at::kFloat, at::kDouble}) {
    bool open = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (room_type(tensors[i]) != type) {
        continue;
      }
      if (!open || plan.back().is_full()) {
        plan.push_back({type, {}});
        open = true;
      }
      plan.back().members.push_back(i);
      plan.back().elems +=
          TensorExchange::as_real(tensors[i].tensor).numel();
    }
  }
  return plan;
}

std::vector<Fact> facts_of(
    const HookSpec& hook, const std::vector<NamedTensorList>& fragments) {
  std::vector<Fact> facts{{"hook", hook.text()}};
  for (const auto& fragment : fragments) {
    facts.push_back({"tensors of a fragment", concat(fragment.size())});
    for (const NamedTensor& each : fragment) {
      room_type(each);
      facts.push_back(
          {concat("tensor '", each.name, "'"),
           concat(each.tensor.scalar_type(), " ", each.tensor.sizes())});
    }
  }
  return facts;
}

}  // namespace

at::Tensor TensorExchange::as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

TensorExchange::TensorExchange(
    const Group& group,
    const HookSpec& hook,
    const std::vector<NamedTensorList>& fragments,
    const std::string& label)
    : label_(label) {
  agree_checked(group, label, [&] { return facts_of(hook, fragments); });
  group_ = group.duplicate("optim");
  hook_ = hook.is_none() ? make_hook("allreduce", group_) : hook.make(group_);
  for (const auto& tensors : fragments) {
    add_fragment(tensors);
  }
}

TensorExchange::~TensorExchange() = default;

void TensorExchange::add_fragment(const NamedTensorList& tensors) {
  const c10::NoGradGuard no_grad;
  const auto plan = plan_buckets(tensors);
  Fragment fragment;
  fragment.rooms.resize(tensors.size());
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const at::Tensor buffer = at::zeros({plan[i].elems}, plan[i].type);
    Parameters parameters;
    std::int64_t begin = 0;
    for (const std::size_t member : plan[i].members) {
      const at::Tensor like = as_real(tensors[member].tensor);
      fragment.rooms[member] =
          buffer.narrow(0, begin, like.numel()).view(like.sizes());
      begin += like.numel();
      parameters.push_back(std::make_shared<const Parameter>(
          Parameter{tensors[member].name, fragment.rooms[member]}));
    }
    parameters_.insert(parameters_.end(), parameters.begin(), parameters.end());
    fragment.buckets.emplace_back(
        buckets_++, i + 1 == plan.size(), buffer, std::move(parameters));
  }
  fragments_.push_back(std::move(fragment));
}

void TensorExchange::start(std::size_t fragment) {
  const c10::NoGradGuard no_grad;
  under_way_ = fragment;
  step_ = {.number = exchanges_++};
  results_.clear();
  hook_->begin_step(step_);
  for (Bucket& bucket : fragments_[fragment].buckets) {
    try {
      results_.push_back(hook_->reduce(bucket));
    } catch (...) {
      // Others wait for what this rank left out, and surface in finish() too.
      results_.push_back(Future::failed(std::current_exception()));
      break;
    }
  }
}

void TensorExchange::finish() {
  const c10::NoGradGuard no_grad;
  auto& buckets = fragments_[*under_way_].buckets;
  under_way_.reset();
  std::exception_ptr error;
  for (std::size_t i = 0; i < results_.size(); ++i) {
    try {
      const at::Tensor average = results_[i].wait();
      at::Tensor buffer = buckets[i].buffer();
      if (!average.is_alias_of(buffer)) {
        buffer.copy_(average.view(-1));
      }
    } catch (...) {
      error = error ? error : std::current_exception();
    }
  }
  step_.outcome = error ? Step::Outcome::kFailed : Step::Outcome::kApplied;
  hook_->end_step(step_);
  if (error) {
    std::rethrow_exception(error);
  }
}

void TensorExchange::average_exactly(std::size_t fragment) {
  const c10::NoGradGuard no_grad;
  std::vector<Future> sums;
  for (const Bucket& bucket : fragments_[fragment].buckets) {
    sums.push_back(
        group_.all_reduce(bucket.buffer().mul_(1.0 / group_.size())));
  }
  for (const Future& sum : sums) {
    sum.wait();
  }
}

void TensorExchange::save(HookState& state) const {
  hook_->save(state);
}

void TensorExchange::check(const HookState& state) const {
  hook_->check(state, parameters_);
}

void TensorExchange::load(const HookState& state) {
  hook_->load(state);
}

}  // namespace gradwire
