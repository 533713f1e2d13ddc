#include "gradwire/ddp/hook_slot.h"

#include <map>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/comm/roll_call.h"
#include "gradwire/compat/reducer.h"

namespace gradwire {

HookSlot::HookSlot(
    std::shared_ptr<c10d::Reducer> reducer,
    std::vector<std::shared_ptr<const Parameter>> parameters,
    Group parent,
    Group own)
    : reducer_(std::move(reducer)),
      parameters_(std::move(parameters)),
      parent_(std::move(parent)),
      own_(std::move(own)) {}

void HookSlot::install(const HookChoice& choice, const Group& group) {
  const bool own_group = &group.impl() == &own_.impl();
  if (adapter_ || !own_group || !choice.is_plain_average()) {
    auto hook = choice.is_none() ? HookChoice("allreduce").make(group)
                                 : choice.make(group);
    if (!adapter_) {
      auto adapter = std::make_unique<HookAdapter>(
          parameters_, own_.rank(), std::make_unique<RollCall>(own_));
      reducer_->register_comm_hook(adapter->make_comm_hook());
      adapter_ = std::move(adapter);
    }
    adapter_->set_hook(std::move(hook), choice.text());
  }
  is_local_ = choice.stays_local();
  text_ = choice.text();
}

void HookSlot::layout_changed() {
  if (adapter_) {
    adapter_->layout_changed();
  }
}

bool HookSlot::failed() const {
  return adapter_ && adapter_->failed_bucket().has_value();
}

void HookSlot::check_group() const {
  if (adapter_ && adapter_->lost_group()) {
    throw CommError(concat(
        "[gradwire.ddp] a collective of the last backward failed: rebuild the "
        "group and the DDP on it, or end the process (rank ",
        own_.rank(),
        ")"));
  }
}

void HookSlot::settle() {
  if (end_) {
    std::rethrow_exception(end_);
  }
  adapter_->wait_for_all();
  check_group();
  try {
    agree(
        parent_,
        "going on after a failed backward",
        {{"failed bucket", concat(*adapter_->failed_bucket())}});
  } catch (const Error&) {
    end_ = std::current_exception();
    throw;
  }
}

void HookSlot::recover() {
  settle();
  compat::reset(*reducer_);
  adapter_->begin_backward();
}

void HookSlot::save(
    const std::string& folder, const std::function<void()>& check) {
  check_group();
  save_hook_state(parent_, folder, owner(), [&] {
    check();
    return saved();
  });
}

void HookSlot::load(
    const std::string& folder,
    const LoadHookState& options,
    const std::function<void()>& check) {
  check_group();
  restore(load_hook_state(parent_, folder, owner(), options, check));
}

HookRecord HookSlot::take(const std::function<void()>& check) {
  check_group();
  return take_hook_state(parent_, owner(), [&] {
    check();
    return saved();
  });
}

void HookSlot::give(
    const HookRecord& record, const std::function<void()>& check) {
  check_group();
  restore(give_hook_state(parent_, owner(), record, check));
}

SavedHook HookSlot::saved() const {
  HookState state;
  if (adapter_) {
    adapter_->hook().save(state);
  }
  return {bucket_layout(), std::move(state)};
}

void HookSlot::restore(const SavedHook& saved) {
  if (adapter_) {
    check_numbers(adapter_->hook(), saved.state);
  }
  restore_buckets(saved.layout);
  if (adapter_) {
    adapter_->hook().load(saved.state);
  }
}

// Parameters of every bucket, as indices.
BucketLayout HookSlot::bucket_layout() const {
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
void HookSlot::restore_buckets(const BucketLayout& layout) {
  if (layout == bucket_layout()) {
    return;
  }
  std::vector<std::vector<std::size_t>> buckets;
  for (const auto& indices : layout) {
    buckets.emplace_back(indices.begin(), indices.end());
  }
  reducer_->initialize_buckets(std::move(buckets));
  layout_changed();
}

HookOwner HookSlot::owner() const {
  HookOwner owner{text_, {}};
  for (const auto& parameter : parameters_) {
    owner.parameters.emplace(parameter->name, parameter->tensor.numel());
  }
  return owner;
}

void HookSlot::report(Stats& stats, bool stepped) const {
  stats.hook = text_;
  stats.rank = own_.rank();
  stats.world = own_.size();
  for (const auto& parameter : parameters_) {
    stats.parameters += parameter->tensor.numel();
  }
  std::vector<Bytes> plain;
  for (const auto& bucket : reducer_->get_grad_buckets(false)) {
    const at::Tensor& buffer = bucket.getBuffer();
    const bool dense = buffer.defined() && !buffer.is_sparse();
    stats.bucket_bytes.push_back(
        dense ? static_cast<std::int64_t>(buffer.nbytes()) : 0);
    plain.push_back(
        {.payload = dense ? all_reduce_bytes(
                                stats.rank,
                                stats.world,
                                buffer.numel(),
                                buffer.element_size())
                          : 0});
    stats.plain_bytes += plain.back().payload;
  }
  if (adapter_) {
    stats.bucket_sent = adapter_->sent_by_bucket();
    stats.by_parameter = adapter_->hook().report();
  } else if (stepped) {
    stats.bucket_sent = plain;
  }
}

}  // namespace gradwire
