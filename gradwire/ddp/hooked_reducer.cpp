#include "gradwire/ddp/hooked_reducer.h"

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <system_error>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/comm/callback_scope.h"
#include "gradwire/comm/profile.h"
#include "gradwire/comm/roll_call.h"
#include "gradwire/compat/reducer.h"

namespace gradwire {

// What the Reducer holds. It may outlive the HookedReducer.
class HookedReducer::Entry : public c10d::CommHookInterface {
 public:
  explicit Entry(std::weak_ptr<HookedReducer> target)
      : target_(std::move(target)) {}

  Future::Raw runHook(c10d::GradBucket& bucket) override {
    if (const auto target = target_.lock()) {
      return target->reduce(bucket);
    }
    auto result = Future::make_raw();
    result->setError(std::make_exception_ptr(Error(
        "[gradwire.hook] the hook was stopped, or the DDP it belongs to is "
        "gone")));
    return result;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return result.toTensor();
  }

 private:
  std::weak_ptr<HookedReducer> target_;
};

// The last reference may be dropped in a callback, on a thread of the hook's
// own that would wait for its own end. Where no other thread can be had, memory
// is lost.
void HookedReducer::destroy(HookedReducer* reducer) {
  if (!CallbackScope::is_open()) {
    delete reducer;
    return;
  }
  try {
    std::thread([reducer] { delete reducer; }).detach();
  } catch (const std::system_error&) {
  }
}

std::shared_ptr<HookedReducer> HookedReducer::make(
    std::shared_ptr<c10d::Reducer> reducer,
    Parameters parameters,
    Group parent,
    Group own) {
  return {
      new HookedReducer(
          std::move(reducer),
          std::move(parameters),
          std::move(parent),
          std::move(own)),
      destroy};
}

HookedReducer::HookedReducer(
    std::shared_ptr<c10d::Reducer> reducer,
    Parameters parameters,
    Group parent,
    Group own)
    : reducer_(std::move(reducer)),
      parameters_(std::move(parameters)),
      learns_(parameters_.empty()),
      parent_(std::move(parent)),
      own_(std::move(own)),
      to_rebuild_(reducer_ && reducer_->should_rebuild_buckets()),
      recorder_(own_) {
  for (const auto& parameter : parameters_) {
    by_tensor_.emplace(parameter->tensor.unsafeGetTensorImpl(), parameter);
  }
}

HookedReducer::~HookedReducer() = default;

void HookedReducer::install(const CheckedHook& choice, const Group& group) {
  close_if_over();
  if (failures_ || !reducer_ || group || !choice.is_plain_average()) {
    auto hook = choice.make(group ? group : own_, shared_from_this());
    if (!failures_) {
      register_entry();
    }
    if (hook_ && hook_ != hook) {
      hand_over(*hook);
    }
    hook_ = std::move(hook);
    failures_->hook = choice.text();
  }
  recorder_.follow(group);
  stays_local_ = choice.stays_local();
  spec_ = choice.text();
}

void HookedReducer::register_entry() {
  auto failures = std::make_shared<BucketFailures>(
      own_.rank(), std::make_unique<RollCall>(own_));
  if (reducer_) {
    try {
      reducer_->register_comm_hook(std::make_unique<Entry>(weak_from_this()));
    } catch (const c10::Error& error) {
      fail("ddp", error.what_without_backtrace());
    }
  }
  failures_ = std::move(failures);
}

void HookedReducer::hand_over(Hook& to) {
  HookState state;
  hook_->save(state);
  if (!state.residuals.empty()) {
    to.take_residuals(state.residuals);
  }
}

void HookedReducer::stop() {
  // Its threads end with it, and they may be in the middle of a step.
  hook_.reset();
}

void HookedReducer::begin_step(Step::Time forward_began) {
  if (told_) {
    close({}, true);
  }
  reset_step(forward_began);
}

void HookedReducer::reset_step(Step::Time forward_began) {
  note_rebuilt_buckets();
  seen_.clear();
  if (failures_) {
    failures_->first = BucketFailures::kNone;
  }
  recorder_.begin(forward_began);
  open_ = true;
  told_ = false;
}

void HookedReducer::note_rebuilt_buckets() {
  if (to_rebuild_ && !reducer_->should_rebuild_buckets()) {
    to_rebuild_ = false;
    rebuilt_ = true;
    layout_changed_ = true;
  }
}

// Where nobody says that a backward begins, its first bucket does: the one
// after the last one, or one that comes again because the backward before was
// broken off. Returns what is against it.
std::exception_ptr HookedReducer::begin_step_if_due(
    const c10d::GradBucket& bucket) {
  const void* first = bucket.getParameters().front().unsafeGetTensorImpl();
  if (open_ && !seen_.contains(first)) {
    return nullptr;
  }
  std::exception_ptr refusal;
  try {
    if (told_) {
      close({}, true);
    }
    if (failed()) {
      settle();
    }
  } catch (...) {
    refusal = std::current_exception();
  }
  reset_step({});
  return refusal;
}

void HookedReducer::end_step(const Step& watched) {
  close(watched, true);
}

void HookedReducer::end_step_of_others() {
  close({}, false);
}

void HookedReducer::close_if_over() {
  if (told_ && !in_backward()) {
    close({}, true);
  }
}

void HookedReducer::close(const Step& watched, bool counts) {
  if (!std::exchange(open_, false)) {
    return;
  }
  recorder_.wait_for_all();
  Step step = recorder_.end(watched);
  const bool averaged =
      recorder_.all_reduced() && (!failures_ || has_all_parameters());
  step.outcome = averaged ? Step::Outcome::kApplied : Step::Outcome::kFailed;
  if (std::exchange(told_, false) && hook_) {
    hook_->end_step(step);
  }
  if (counts) {
    recorder_.count(std::move(step), spec_);
  } else {
    recorder_.count_of_others(step);
  }
}

bool HookedReducer::has_all_parameters() const {
  return seen_.size() == by_tensor_.size();
}

bool HookedReducer::in_backward() const {
  return open_ && !seen_.empty() && !has_all_parameters();
}

Future::Raw HookedReducer::reduce(c10d::GradBucket& grad_bucket) {
  const auto refusal = begin_step_if_due(grad_bucket);
  const auto record = recorder_.add_bucket();
  const BucketResult result(
      failures_,
      record,
      recorder_.buckets() - 1,
      grad_bucket.getBuffer(),
      stays_local_ ? 1 : scale_);
  const ByteScope scope(record->sent);
  const ProfileScope profile(
      [&] { return concat(spec_, " bucket ", recorder_.buckets() - 1); });
  try {
    Bucket bucket = next_bucket(grad_bucket);
    before_bucket_(bucket);
    if (refusal) {
      std::rethrow_exception(refusal);
    }
    reduce_by_hook(bucket).on_done(
        [result](const Future& done) { result.complete(done); });
  } catch (...) {
    result.fail_with(std::current_exception());
  }
  return record->result;
}

Future HookedReducer::reduce_by_hook(Bucket& bucket) {
  // Ranks that left a collective out would pair up the next ones wrongly.
  if (failures_->first != BucketFailures::kNone) {
    fail("hook", "not reduced, because an earlier bucket failed");
  }
  if (!hook_) {
    fail("hook", "the hook was stopped, or the DDP it belongs to is gone");
  }
  if (std::exchange(layout_changed_, false)) {
    hook_->rebuild();
  }
  if (!std::exchange(told_, true)) {
    hook_->begin_step(recorder_.current());
  }
  Future future = hook_->reduce(bucket);
  if (!future.valid()) {
    fail("hook", "the hook returned an empty Future");
  }
  return future;
}

Bucket HookedReducer::next_bucket(const c10d::GradBucket& bucket) {
  Parameters members;
  for (const auto& tensor : bucket.getParameters()) {
    members.push_back(find(tensor));
    seen_.insert(tensor.unsafeGetTensorImpl());
  }
  return Bucket(
      recorder_.buckets() - 1,
      learns_ ? bucket.isLast() : has_all_parameters(),
      bucket.getBuffer(),
      std::move(members));
}

const std::shared_ptr<const Parameter>& HookedReducer::find(
    const at::Tensor& tensor) {
  const void* key = tensor.unsafeGetTensorImpl();
  if (learns_ && !by_tensor_.contains(key)) {
    const auto name = std::to_string(by_tensor_.size());
    by_tensor_.emplace(
        key, std::make_shared<const Parameter>(Parameter{name, tensor}));
  }
  return by_tensor_.at(key);
}

// Hooks average over all ranks, the Reducer by itself over as many as it is
// told.
void HookedReducer::average_over(int ranks) {
  const int all = own_.size();
  if (failures_) {
    scale_ = static_cast<double>(all) / ranks;
  } else {
    compat::set_divisor(*reducer_, ranks == all ? 0 : ranks);
  }
}

bool HookedReducer::failed() const {
  return failures_ && failures_->first != BucketFailures::kNone;
}

bool HookedReducer::lost_group() const {
  return failures_ && failures_->lost_group;
}

void HookedReducer::check_group() const {
  if (lost_group()) {
    throw CommError(concat(
        "[gradwire.ddp] a collective of the last backward failed: rebuild the "
        "group and the DDP on it, or end the process (rank ",
        own_.rank(),
        ")"));
  }
}

void HookedReducer::settle() {
  if (end_) {
    std::rethrow_exception(end_);
  }
  recorder_.wait_for_all();
  check_group();
  try {
    agree(
        parent_,
        "going on after a failed backward",
        {{"failed bucket", concat(failures_->first.load())}});
  } catch (const Error&) {
    end_ = std::current_exception();
    throw;
  }
}

void HookedReducer::recover() {
  settle();
  compat::reset(*reducer_);
  close({}, true);
  reset_step({});
}

}  // namespace gradwire
