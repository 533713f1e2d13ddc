// What is kept of a hooked Reducer, and what is said of it.

#include <map>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/compat/reducer.h"
#include "gradwire/ddp/hooked_reducer.h"

namespace gradwire {

void HookedReducer::save(
    const std::string& folder, const std::function<void()>& check) {
  check_group();
  rebuild_buckets_if_due(check);
  save_hook_state(parent_, folder, owner(), [&] {
    check();
    return saved();
  });
}

void HookedReducer::load(
    const std::string& folder,
    const LoadHookState& options,
    const std::function<void()>& check) {
  check_group();
  restore(load_hook_state(
      parent_, folder, owner(), options, [&](const HookState& state) {
        check();
        check_state(state);
      }));
}

HookRecord HookedReducer::take(const std::function<void()>& check) {
  check_group();
  rebuild_buckets_if_due(check);
  return take_hook_state(parent_, owner(), [&] {
    check();
    return saved();
  });
}

void HookedReducer::give(const std::function<HookRecord()>& find_record) {
  check_group();
  restore(give_hook_state(
      parent_, owner(), find_record, [&](const HookState& state) {
        check_state(state);
      }));
}

// The next forward would do it. A state with the buckets that the next step has
// lets it go on with the same bits elsewhere.
void HookedReducer::rebuild_buckets_if_due(const std::function<void()>& check) {
  close_if_over();
  if (!reducer_->should_rebuild_buckets()) {
    return;
  }
  agree_checked(parent_, "the buckets of a hook state", [&] {
    check();
    return std::vector<Fact>{};
  });
  reducer_->rebuild_buckets();
  note_rebuilt_buckets();
}

SavedHook HookedReducer::saved() {
  HookState state = hook_state();
  return {bucket_layout(), std::move(state)};
}

void HookedReducer::check_state(const HookState& state) const {
  if (!hook_) {
    return;
  }
  Parameters parameters;
  for (const auto& [tensor, member] : by_tensor_) {
    parameters.push_back(member.parameter);
  }
  hook_->check(state, parameters);
}

void HookedReducer::restore(const SavedHook& saved) {
  close_if_over();
  restore_buckets(saved.layout);
  if (hook_) {
    hook_->load(saved.state);
  }
}

HookState HookedReducer::hook_state() {
  close_if_over();
  HookState state;
  if (hook_) {
    hook_->save(state);
  }
  return state;
}

void HookedReducer::set_hook_state(const HookState& state) {
  close_if_over();
  agree_checked(parent_, "the state of a hook", [&] {
    check_state(state);
    return facts_of(state);
  });
  hook_->load(state);
}

std::vector<ParameterReport> HookedReducer::report() {
  close_if_over();
  return hook_ ? hook_->report() : std::vector<ParameterReport>();
}

// Parameters of every bucket, as indices.
BucketLayout HookedReducer::bucket_layout() const {
  std::map<const void*, std::int64_t> index_of;
  for (const auto& parameter : parameters_) {
    index_of.emplace(
        parameter->tensor.unsafeGetTensorImpl(),
        static_cast<std::int64_t>(index_of.size()));
  }
  BucketLayout layout;
  for (const auto& bucket : reducer_->get_grad_buckets(false)) {
    auto& indices = layout.emplace_back();
    for (const auto& parameter : bucket.getParameters()) {
      indices.push_back(index_of.at(parameter.unsafeGetTensorImpl()));
    }
  }
  return layout;
}

// Who owns an element, and so who keeps what its second encoding lost, depends
// on the buckets: to go on with the same bits it takes the same ones.
void HookedReducer::restore_buckets(const BucketLayout& layout) {
  if (layout == bucket_layout()) {
    return;
  }
  std::vector<std::vector<std::size_t>> buckets;
  for (const auto& indices : layout) {
    buckets.emplace_back(indices.begin(), indices.end());
  }
  compat::set_buckets(*reducer_, std::move(buckets));
  layout_changed_ = true;
}

HookOwner HookedReducer::owner() const {
  HookOwner owner{spec_, {}};
  for (const auto& parameter : parameters_) {
    owner.parameters.emplace(parameter->name, parameter->reals());
  }
  return owner;
}

// What each bucket would send without a hook.
std::vector<Bytes> HookedReducer::plain_bytes_by_bucket() const {
  std::vector<Bytes> result;
  for (const auto& bucket : reducer_->get_grad_buckets(false)) {
    const at::Tensor& buffer = bucket.getBuffer();
    const bool dense = buffer.defined() && !buffer.is_sparse();
    result.push_back(
        {.payload = dense ? own_.all_reduce_bytes(
                                buffer.numel(), buffer.element_size())
                          : 0});
  }
  return result;
}

Stats HookedReducer::stats() {
  close_if_over();
  note_rebuilt_buckets();
  Stats stats;
  recorder_.report(stats);
  stats.hook = spec_;
  stats.rank = own_.rank();
  stats.world = own_.size();
  stats.rebuilt = rebuilt_;
  for (const auto& parameter : parameters_) {
    stats.parameters += parameter->tensor.numel();
  }
  for (const auto& bucket : reducer_->get_grad_buckets(false)) {
    const at::Tensor& buffer = bucket.getBuffer();
    const bool dense = buffer.defined() && !buffer.is_sparse();
    stats.bucket_bytes.push_back(
        dense ? static_cast<std::int64_t>(buffer.nbytes()) : 0);
  }
  for (const Bytes& bytes : plain_bytes_by_bucket()) {
    stats.plain_bytes += bytes.payload;
    if (!failures_) {
      stats.last.buckets.push_back({.sent = bytes});
    }
  }
  stats.by_parameter = report();
  return stats;
}

}  // namespace gradwire
