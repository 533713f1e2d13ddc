// A DDP's hook: exchanged, saved, loaded, and what follows when it fails.

#include <map>

#include "gradwire/base/error.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/comm/roll_call.h"
#include "gradwire/ddp/engine_impl.h"

namespace gradwire {

void DdpEngine::set_hook(
    const HookChoice& choice, const std::optional<Group>& group) {
  Impl& impl = *impl_;
  std::string text;
  impl.check_no_join("set_hook");
  impl.check_group();
  agree_checked(impl.parent, "set_hook", [&] {
    text = choice.text();
    impl.check_between_iterations("set_hook");
    return std::vector<Fact>{{"hook", text}};
  });
  if (impl.failed()) {
    impl.recover();
  }
  impl.install_hook(choice, group.value_or(impl.group));
  impl.meter->follow(group.value_or(Group()));
  impl.hook_text = text;
}

void DdpEngine::register_hook_once(
    const HookChoice& choice, const std::optional<Group>& group) {
  impl_->check_no_join("register_ddp_comm_hook");
  agree_checked(impl_->parent, "register_ddp_comm_hook", [&] {
    if (impl_->hook_text != "none") {
      fail(
          "ddp",
          "register_ddp_comm_hook can only be called once, hook '",
          impl_->hook_text,
          "' is registered; set_hook replaces it");
    }
    return std::vector<Fact>{};
  });
  set_hook(choice, group);
}

const std::string& DdpEngine::hook() const {
  return impl_->hook_text;
}

// The Reducer averages by itself until a hook is registered that does something
// else. Afterwards it never does again, and "none" is the allreduce hook.
void DdpEngine::Impl::install_hook(
    const HookChoice& choice, const Group& hook_group) {
  const bool own_group = &hook_group.impl() == &group.impl();
  if (!adapter && own_group && choice.is_plain_average()) {
    return;
  }
  auto hook = choice.is_none() ? HookChoice("allreduce").make(hook_group)
                               : choice.make(hook_group);
  if (!adapter) {
    adapter = std::make_unique<HookAdapter>(
        model.trainable, group.rank(), std::make_unique<RollCall>(group));
    reducer().register_comm_hook(adapter->make_comm_hook());
  }
  adapter->set_hook(std::move(hook), choice.text());
  local_hook = choice.stays_local();
}

void DdpEngine::Impl::report_buckets(Stats& stats) const {
  std::vector<Bytes> plain;
  for (const auto& bucket : reduction.reducer->get_grad_buckets(false)) {
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
  if (adapter) {
    stats.bucket_sent = adapter->sent_by_bucket();
    stats.by_parameter = adapter->hook().report();
  } else if (meter->steps() > 0) {
    stats.bucket_sent = plain;
  }
}

void DdpEngine::save_hook_state(const std::string& folder) {
  Impl& impl = *impl_;
  impl.check_no_join("save_hook_state");
  impl.check_group();
  gradwire::save_hook_state(impl.parent, impl.place_of_state(folder), [&] {
    impl.check_between_iterations("save_hook_state");
    HookState state;
    if (impl.adapter) {
      impl.adapter->hook().save(state);
    }
    return SavedHook{impl.bucket_layout(), std::move(state)};
  });
}

void DdpEngine::load_hook_state(
    const std::string& folder, const LoadHookState& options) {
  Impl& impl = *impl_;
  impl.check_no_join("load_hook_state");
  impl.check_group();
  const auto place = impl.place_of_state(folder);
  const SavedHook saved =
      gradwire::load_hook_state(impl.parent, place, options, [&] {
        impl.check_between_iterations("load_hook_state");
      });
  impl.restore_buckets(saved.layout);
  if (impl.adapter) {
    impl.adapter->hook().load(saved.state);
  }
}

// Parameters of every bucket, as indices.
BucketLayout DdpEngine::Impl::bucket_layout() const {
  std::map<const void*, std::int64_t> index_of;
  for (const auto& parameter : model.trainable) {
    index_of.emplace(
        parameter->tensor.unsafeGetTensorImpl(),
        static_cast<std::int64_t>(index_of.size()));
  }
  BucketLayout layout;
  for (const auto& bucket : reduction.reducer->get_grad_buckets(false)) {
    auto& indices = layout.emplace_back();
    for (const auto& parameter : bucket.getParameters()) {
      indices.push_back(index_of.at(parameter.unsafeGetTensorImpl()));
    }
  }
  return layout;
}

// Who owns an element, and so who keeps what its second encoding lost, depends
// on the buckets: to go on with the same bits it takes the same ones.
void DdpEngine::Impl::restore_buckets(const BucketLayout& layout) {
  if (layout == bucket_layout()) {
    return;
  }
  std::vector<std::vector<std::size_t>> buckets;
  for (const auto& indices : layout) {
    buckets.emplace_back(indices.begin(), indices.end());
  }
  reducer().initialize_buckets(std::move(buckets));
  if (adapter) {
    adapter->layout_changed();
  }
}

HookStatePlace DdpEngine::Impl::place_of_state(
    const std::string& folder) const {
  HookStatePlace place{folder, hook_text, {}};
  for (const auto& parameter : model.trainable) {
    place.parameters.emplace_back(parameter->name, parameter->tensor.numel());
  }
  return place;
}

// Ranks without input could not take part.
void DdpEngine::Impl::check_no_join(const char* call) {
  if (current_join()) {
    fail(
        "ddp",
        call,
        " was called inside of a Join, expected it before or after (rank ",
        group.rank(),
        ")");
  }
}

// A backward that failed is over, though not all gradients are there.
void DdpEngine::Impl::check_between_iterations(const char* call) const {
  if (watch->armed() && !failed()) {
    fail(
        "ddp",
        call,
        " was called between forward and backward, expected it before "
        "forward; a forward without a backward belongs under "
        "torch::NoGradGuard (rank ",
        group.rank(),
        ")");
  }
}

// Said before anything is agreed on: a peer may be gone.
void DdpEngine::Impl::check_group() const {
  if (adapter && adapter->lost_group()) {
    throw CommError(concat(
        "[gradwire.ddp] a collective of the last backward failed: rebuild the "
        "group and the DDP on it, or end the process (rank ",
        group.rank(),
        ")"));
  }
}

// A backward whose hook failed leaves collectives under way and the Reducer in
// the middle of things. It can be forgotten if it failed in the same place on
// every rank; otherwise some rank has left out a collective that others wait
// for, and nothing that is sent from now on would find its partner.
void DdpEngine::Impl::recover() {
  adapter->wait_for_all();
  check_group();
  agree(
      parent,
      "going on after a failed backward",
      {{"failed bucket", concat(*adapter->failed_bucket())}});
  compat::reset(reducer());
  adapter->begin_backward();
  watch->disarm();
}

}  // namespace gradwire
