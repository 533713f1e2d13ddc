#include "gradwire/hook/stateful_hook.h"

#include "gradwire/base/error.h"
#include "gradwire/hook/dense.h"
#include "gradwire/hook/plain_job.h"

namespace gradwire {
namespace {

bool succeeded(const Future& result) {
  try {
    result.wait();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

StatefulHook::StatefulHook(
    Traits traits, const Group& group, std::vector<Lane::Phase> phases)
    : traits_(std::move(traits)),
      world_(group.size()),
      residuals_(
          "residual",
          at::TensorOptions(traits_.memory).device(group.device())) {
  if (world_ > 1) {
    lane_ = std::make_unique<Lane>(group, traits_.spec, std::move(phases));
  }
}

void StatefulHook::begin_step(const Step&) {
  in_step_ = true;
  *not_finite_ = false;
}

Future StatefulHook::reduce(Bucket& bucket) {
  if (world_ == 1 && !traits_.compresses_alone) {
    return Future::ready(bucket.buffer());
  }
  if (!in_step_) {
    fail(
        "hook",
        "'",
        name(),
        "' got bucket ",
        bucket.index(),
        " outside of a step, expected begin_step before it: a hook around "
        "another one passes on begin_step and end_step");
  }
  check_dense_floats(name(), bucket, traits_.pass_sparse);
  try {
    results_.push_back(
        bucket.is_sparse() || passes(bucket) ? pass(bucket) : compress(bucket));
    return results_.back();
  } catch (...) {
    if (lane_) {
      lane_->fail(std::current_exception());
    }
    throw;
  }
}

void StatefulHook::pay(const Bucket& bucket, std::size_t i) {
  const at::Tensor owed =
      residuals_.pay(bucket.parameter(i).name, bucket.elems(i));
  if (owed.defined()) {
    bucket.flat_gradient(i).add_(owed);
  }
}

Future StatefulHook::pass(const Bucket& bucket) {
  if (world_ == 1) {
    return Future::ready(bucket.buffer());
  }
  return lane_->submit(
      std::make_shared<PlainJob>(bucket.buffer(), world_, not_finite_),
      bucket.buffer());
}

void StatefulHook::end_step(Step& step) {
  in_step_ = false;
  if (results_.empty()) {
    return;
  }
  bool taken = step.outcome == Step::Outcome::kApplied;
  // A hook around this one may have dropped a future.
  for (const Future& result : results_) {
    taken = succeeded(result) && taken;
  }
  results_.clear();
  if (taken && *not_finite_) {
    step.outcome = Step::Outcome::kNotFinite;
    taken = false;
  }
  if (taken) {
    residuals_.commit();
  } else {
    residuals_.rollback();
  }
  settle(taken);
  ++steps_;
}

void StatefulHook::rebuild() {
  residuals_.rebuild();
  forget_buckets();
}

void StatefulHook::save(HookState& state) {
  state.numbers["step"] = static_cast<std::int64_t>(steps_);
  if (has_feedback()) {
    state.residuals = residuals_.save();
  }
  save_more(state);
}

void StatefulHook::load(const HookState& state) {
  steps_ = static_cast<std::uint64_t>(state.numbers.at("step"));
  if (has_feedback()) {
    residuals_.load(state.residuals);
  }
  load_more(state);
  forget_buckets();
}

void StatefulHook::check(
    const HookState& state, const Parameters& parameters) const {
  check_count(state, "step");
  residuals_.check(state.residuals);
  check_more(state, parameters);
}

void StatefulHook::check_count(
    const HookState& state, const std::string& number) const {
  const auto found = state.numbers.find(number);
  if (found == state.numbers.end()) {
    fail("hook", "the state of '", name(), "' has no number '", number, "'");
  }
  if (found->second < 0) {
    fail(
        "hook",
        "the state of '",
        name(),
        "' has the number '",
        number,
        "' ",
        found->second,
        ", expected 0 or more");
  }
}

bool StatefulHook::take_residuals(
    const std::map<std::string, at::Tensor>& owed) {
  if (has_feedback()) {
    residuals_.load(owed);
  }
  return has_feedback();
}

}  // namespace gradwire
