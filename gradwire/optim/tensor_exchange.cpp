#include "gradwire/optim/tensor_exchange.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>

#include "gradwire/base/error.h"
#include "gradwire/optim/training_record.h"

namespace gradwire {
namespace {

// As large as DDP's buckets are by default.
constexpr std::int64_t kBucketBytes = 25 << 20;

at::ScalarType room_type(const NamedTensor& named) {
  const auto type = c10::toRealValueType(named.tensor.scalar_type());
  if (!c10::isFloatingType(type)) {
    fail(
        "optim", "'", named.name, "' is of ", type, ", expected one of floats");
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
      plan.back().elems += TensorExchange::as_real(tensors[i].tensor).numel();
    }
  }
  return plan;
}

std::vector<Fact> facts_of_exchange(
    const HookSpec& hook, const std::vector<NamedTensorList>& fragments) {
  std::vector<Fact> facts{{"hook", hook.text()}};
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    for (const NamedTensor& each : fragments[i]) {
      room_type(each);
      facts.push_back({concat("fragment of '", each.name, "'"), concat(i)});
    }
  }
  return facts;
}

}  // namespace

std::vector<Fact> facts_of(const NamedTensorList& tensors) {
  if (tensors.empty()) {
    fail("optim", "there are no tensors, expected at least one");
  }
  std::vector<Fact> facts;
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second) {
      fail("optim", "two tensors are called '", name, "'");
    }
    if (!tensor.defined() || tensor.layout() != at::kStrided ||
        tensor.is_quantized()) {
      fail("optim", "'", name, "' is no dense tensor of numbers");
    }
    facts.push_back(
        {concat("tensor '", name, "'"),
         concat(tensor.scalar_type(), " ", tensor.sizes())});
  }
  return facts;
}

HookSpec averaging_hook(const std::string& spec) {
  HookSpec hook(spec);
  if (hook.stays_local() || hook.find("post_local_sgd") != nullptr) {
    fail(
        "optim",
        "average is '",
        spec,
        "', expected a hook that averages over all ranks");
  }
  return hook.is_none() ? HookSpec("allreduce") : hook;
}

at::Tensor TensorExchange::as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

TensorExchange::TensorExchange(
    const Group& group,
    const HookSpec& hook,
    const std::vector<NamedTensorList>& fragments,
    const std::string& label) {
  agree_checked(
      group, label, [&] { return facts_of_exchange(hook, fragments); });
  group_ = group.duplicate(label);
  roll_call_ = std::make_unique<RollCall>(group_);
  for (const auto& tensors : fragments) {
    add_fragment(hook, tensors);
  }
}

TensorExchange::~TensorExchange() = default;

void TensorExchange::add_fragment(
    const HookSpec& hook, const NamedTensorList& tensors) {
  const c10::NoGradGuard no_grad;
  const auto plan = plan_buckets(tensors);
  Fragment fragment{
      .hook = hook.make(group_),
      .rooms = std::vector<at::Tensor>(tensors.size())};
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const at::Tensor buffer = at::zeros(
        {plan[i].elems},
        at::TensorOptions(plan[i].type).device(group_.device()));
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
    fragment.parameters.insert(
        fragment.parameters.end(), parameters.begin(), parameters.end());
    fragment.buckets.emplace_back(
        i, i + 1 == plan.size(), buffer, std::move(parameters));
  }
  fragments_.push_back(std::move(fragment));
}

void TensorExchange::start(std::size_t index) {
  const c10::NoGradGuard no_grad;
  Fragment& fragment = fragments_[index];
  under_way_ = index;
  step_ = {.number = fragment.steps};
  results_.clear();
  fragment.hook->begin_step(step_);
  for (Bucket& bucket : fragment.buckets) {
    try {
      results_.push_back(roll_call_->named(fragment.hook->reduce(bucket)));
    } catch (...) {
      // Others wait for what this rank left out, and surface in finish() too.
      results_.push_back(
          roll_call_->named(Future::failed(std::current_exception())));
      break;
    }
  }
}

void TensorExchange::finish() {
  const c10::NoGradGuard no_grad;
  Fragment& fragment = fragments_[*under_way_];
  under_way_.reset();
  std::exception_ptr error;
  for (std::size_t i = 0; i < results_.size(); ++i) {
    try {
      const at::Tensor average = results_[i].wait();
      at::Tensor buffer = fragment.buckets[i].buffer();
      if (!average.is_alias_of(buffer)) {
        buffer.copy_(average.view(-1));
      }
    } catch (...) {
      error = error ? error : std::current_exception();
    }
  }
  step_.outcome = error ? Step::Outcome::kFailed : Step::Outcome::kApplied;
  fragment.hook->end_step(step_);
  if (error) {
    std::rethrow_exception(error);
  }
  ++fragment.steps;
}

void TensorExchange::average_exactly(std::size_t fragment) {
  const c10::NoGradGuard no_grad;
  std::vector<Future> sums;
  for (const Bucket& bucket : fragments_[fragment].buckets) {
    sums.push_back(roll_call_->named(
        group_.all_reduce(bucket.buffer().mul_(1.0 / group_.size()))));
  }
  for (const Future& sum : sums) {
    sum.wait();
  }
}

void TensorExchange::broadcast(std::size_t fragment) {
  std::vector<Future> copies;
  for (const Bucket& bucket : fragments_[fragment].buckets) {
    copies.push_back(roll_call_->named(group_.broadcast(bucket.buffer())));
  }
  for (const Future& copy : copies) {
    copy.wait();
  }
}

HookState TensorExchange::state() const {
  HookState state;
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    HookState part;
    fragments_[i].hook->save(part);
    add_part(state, concat("fragment", i), part);
  }
  return state;
}

void TensorExchange::check(const HookState& state) const {
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    check_fragment(fragments_[i], take_part(state, concat("fragment", i)));
  }
}

void TensorExchange::check_fragment(
    const Fragment& fragment, const HookState& state) {
  for (const auto& [name, residual] : state.residuals) {
    const auto found = std::ranges::find_if(
        fragment.parameters,
        [&](const auto& each) { return each->name == name; });
    if (found == fragment.parameters.end() ||
        residual.numel() != (*found)->tensor.numel()) {
      fail(
          "optim",
          "a state has a residual of ",
          residual.numel(),
          " elements for '",
          name,
          "', expected one as large as the tensor");
    }
  }
  fragment.hook->check(state, fragment.parameters);
}

void TensorExchange::load(const HookState& state) {
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    fragments_[i].hook->load(take_part(state, concat("fragment", i)));
  }
}

}  // namespace gradwire
