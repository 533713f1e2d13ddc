#include "gradwire/ddp/adapter.h"

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "gradwire/base/error.h"
#include "gradwire/ddp/bucket_report.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct HookAdapter::State {
  std::unordered_map<const void*, std::shared_ptr<const Parameter>> parameters;
  std::shared_ptr<BucketReport::Shared> shared =
      std::make_shared<BucketReport::Shared>();
  std::shared_ptr<Hook> hook;
  std::size_t next_index = 0;
  std::size_t parameters_seen = 0;
  bool layout_changed = false;
  // The model is not known before its buckets come.
  bool learns = false;
  // Parameters of this backward, where the model is not known.
  std::unordered_set<const void*> seen;
  std::function<void()> on_begin;
  Clock::time_point first_bucket;
  Clock::time_point last_bucket;
  // Of the buckets of this backward.
  std::vector<Future::Raw> results;
  std::vector<std::shared_ptr<ByteMeter>> ledgers;

  bool in_backward() const {
    return parameters_seen > 0 && parameters_seen < parameters.size();
  }

  bool comes_again(const c10d::GradBucket& bucket) const {
    return seen.contains(bucket.getParameters().front().unsafeGetTensorImpl());
  }

  void begin() {
    next_index = 0;
    parameters_seen = 0;
    results.clear();
    ledgers.clear();
    seen.clear();
    shared->failed_bucket = BucketReport::kNone;
  }

  // Begins a backward where nobody else does. Returns what is against it.
  std::exception_ptr begin_if_due(const c10d::GradBucket& bucket) {
    if (learns && comes_again(bucket)) {
      begin();
    }
    if (!on_begin || in_backward()) {
      return nullptr;
    }
    std::exception_ptr refusal;
    try {
      on_begin();
    } catch (...) {
      refusal = std::current_exception();
    }
    begin();
    return refusal;
  }

  void note_time() {
    last_bucket = Clock::now();
    if (next_index == 0) {
      first_bucket = last_bucket;
    }
  }

  void learn(const void* key, const at::Tensor& tensor) {
    seen.insert(key);
    if (!parameters.contains(key)) {
      const auto name = std::to_string(parameters.size());
      parameters.emplace(
          key, std::make_shared<const Parameter>(Parameter{name, tensor}));
    }
  }

  const std::shared_ptr<const Parameter>& find(const at::Tensor& tensor) {
    const void* key = tensor.unsafeGetTensorImpl();
    if (learns) {
      learn(key, tensor);
    }
    return parameters.at(key);
  }

  Bucket next_bucket(const c10d::GradBucket& bucket) {
    std::vector<std::shared_ptr<const Parameter>> members;
    for (const auto& tensor : bucket.getParameters()) {
      members.push_back(find(tensor));
    }
    parameters_seen += members.size();
    return Bucket(
        next_index++,
        learns ? bucket.isLast() : parameters_seen == parameters.size(),
        bucket.getBuffer(),
        std::move(members));
  }

  Future reduce(Bucket& bucket) {
    // Ranks that left a collective out would pair up the next ones wrongly.
    if (shared->failed_bucket != BucketReport::kNone) {
      fail("hook", "not reduced, because an earlier bucket failed");
    }
    if (std::exchange(layout_changed, false)) {
      hook->rebuild();
    }
    Future future = hook->reduce(bucket);
    if (!future.valid()) {
      fail("hook", "the hook returned an empty Future");
    }
    return future;
  }
};

class HookAdapter::CommHook : public c10d::CommHookInterface {
 public:
  explicit CommHook(std::shared_ptr<State> state) : state_(std::move(state)) {}

  Future::Raw runHook(c10d::GradBucket& grad_bucket) override {
    const auto refusal = state_->begin_if_due(grad_bucket);
    state_->note_time();
    BucketReport report{state_->shared, Future::make_raw(), state_->next_index};
    state_->results.push_back(report.result);
    state_->ledgers.push_back(std::make_shared<ByteMeter>());
    const ByteScope scope(state_->ledgers.back());
    try {
      Bucket bucket = state_->next_bucket(grad_bucket);
      report.elems = bucket.is_sparse() ? -1 : bucket.buffer().numel();
      if (refusal) {
        std::rethrow_exception(refusal);
      }
      state_->reduce(bucket).on_done(
          [report](const Future& done) { report.complete(done); });
    } catch (...) {
      report.fail_with(std::current_exception());
    }
    return report.result;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return result.toTensor();
  }

 private:
  std::shared_ptr<State> state_;
};

HookAdapter::HookAdapter(
    const std::vector<std::shared_ptr<const Parameter>>& parameters,
    int rank,
    std::unique_ptr<RollCall> roll_call)
    : state_(std::make_shared<State>()) {
  for (const auto& parameter : parameters) {
    state_->parameters.emplace(
        parameter->tensor.unsafeGetTensorImpl(), parameter);
  }
  state_->shared->rank = rank;
  state_->shared->roll_call = std::move(roll_call);
}

HookAdapter::HookAdapter(int rank, std::unique_ptr<RollCall> roll_call)
    : HookAdapter({}, rank, std::move(roll_call)) {
  state_->learns = true;
}

HookAdapter::~HookAdapter() = default;

std::unique_ptr<c10d::CommHookInterface> HookAdapter::make_comm_hook() {
  return std::make_unique<CommHook>(state_);
}

void HookAdapter::set_hook(std::shared_ptr<Hook> hook, std::string text) {
  state_->hook = std::move(hook);
  state_->shared->text = std::move(text);
}

Hook& HookAdapter::hook() const {
  return *state_->hook;
}

std::vector<Bytes> HookAdapter::sent_by_bucket() const {
  std::vector<Bytes> result;
  for (const auto& ledger : state_->ledgers) {
    result.push_back(ledger->read());
  }
  return result;
}

void HookAdapter::begin_backward() {
  state_->begin();
}

void HookAdapter::begin_by_itself(std::function<void()> on_begin) {
  state_->on_begin = std::move(on_begin);
}

bool HookAdapter::in_backward() const {
  return state_->in_backward();
}

std::optional<HookAdapter::Times> HookAdapter::times() const {
  const bool complete =
      state_->parameters_seen == state_->parameters.size() &&
      std::ranges::all_of(state_->results, [](const Future::Raw& result) {
        return result->completed() && !result->hasError();
      });
  if (!complete) {
    return {};
  }
  return Times{
      state_->first_bucket, state_->last_bucket, state_->shared->reduced};
}

std::optional<std::int64_t> HookAdapter::failed_bucket() const {
  const std::int64_t index = state_->shared->failed_bucket;
  return index == BucketReport::kNone ? std::nullopt : std::optional(index);
}

bool HookAdapter::lost_group() const {
  return state_->shared->lost_group;
}

void HookAdapter::wait_for_all() {
  for (const auto& result : state_->results) {
    result->wait();
  }
}

void HookAdapter::set_scale(double scale) {
  state_->shared->scale = scale;
}

void HookAdapter::layout_changed() {
  state_->layout_changed = true;
}

}  // namespace gradwire
