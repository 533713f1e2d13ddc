#include "gradwire/ddp/engine.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <torch/csrc/autograd/engine.h>

#include <cmath>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/compat/reducer.h"
#include "gradwire/ddp/adapter.h"
#include "gradwire/ddp/model.h"
#include "gradwire/ddp/sink.h"
#include "gradwire/ddp/step_meter.h"
#include "gradwire/ddp/watch.h"

namespace gradwire {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr std::size_t kBroadcastChunkBytes = 250u << 20;

std::int64_t to_bytes(const char* option, double mb) {
  if (!std::isfinite(mb) || mb <= 0 || mb > 1e6) {
    fail("ddp", option, " is ", mb, ", expected more than 0 and at most 1e6");
  }
  return static_cast<std::int64_t>(std::ceil(mb * kMiB));
}

}  // namespace

struct DdpEngine::Impl {
  std::shared_ptr<torch::nn::Module> module;
  DistributedDataParallelOptions options;
  Group parent;
  Model model;
  Group group;
  // The watch's hooks must run before the Reducer's: it is made first.
  std::unique_ptr<GradientWatch> watch;
  compat::ReducerPair reduction;
  std::unique_ptr<HookAdapter> adapter;
  std::string hook_text = "none";
  std::unique_ptr<StepMeter> meter;

  bool sync = true;
  // The forward under way will be followed by an averaging backward.
  bool syncing = false;
  bool delayed_reduction_queued = false;
  bool rebuilt = false;

  c10d::Reducer& reducer() {
    return *reduction.reducer;
  }
  std::vector<Fact> inspect();
  void construct();
  void broadcast(const std::vector<at::Tensor>& tensors);
  void rebuild_buckets();
  bool failed() const;
  void check_group() const;
  void recover();
  [[noreturn]] void explain_unfinished(const c10::Error& error) const;
  void install_hook(const HookChoice& choice, const Group& hook_group);
  void check_between_iterations(const char* call) const;
  HookStatePlace place_of_state(const std::string& folder) const;
  BucketLayout bucket_layout() const;
  void restore_buckets(const BucketLayout& layout);
  void report_buckets(Stats& stats) const;
  bool needs_sink() const;
  void on_sink_backward();
  void end_step(const GradientWatch::Backward& backward);
  void make_gradients_plain();
};

DdpEngine::DdpEngine(
    std::shared_ptr<torch::nn::Module> module,
    const Group& group,
    const DistributedDataParallelOptions& options)
    : impl_(std::make_shared<Impl>()) {
  impl_->module = std::move(module);
  impl_->options = options;
  impl_->parent = group;
  agree_checked(
      group, "DistributedDataParallel", [&] { return impl_->inspect(); });
  impl_->construct();
}

DdpEngine::~DdpEngine() = default;

// What can be wrong with module and options on this rank alone, and what all
// ranks must see alike.
std::vector<Fact> DdpEngine::Impl::inspect() {
  if (!module) {
    fail("ddp", "got a null module");
  }
  to_bytes("bucket_cap_mb", options.bucket_cap_mb);
  to_bytes("first_bucket_cap_mb", options.first_bucket_cap_mb);
  hook_text = options.hook.text();
  model = inspect_model(*module, options);
  std::vector<Fact> result{
      {"hook", hook_text},
      {"bucket_cap_mb", concat(options.bucket_cap_mb)},
      {"first_bucket_cap_mb", concat(options.first_bucket_cap_mb)},
      {"find_unused_parameters", concat(options.find_unused_parameters)},
      {"static_graph", concat(options.static_graph)},
      {"gradient_as_bucket_view", concat(options.gradient_as_bucket_view)},
      {"broadcast_buffers", concat(options.broadcast_buffers)},
      {"init_sync", concat(options.init_sync)}};
  result.insert(result.end(), model.facts.begin(), model.facts.end());
  return result;
}

void DdpEngine::Impl::construct() {
  group = parent.duplicate("ddp");
  if (options.init_sync) {
    broadcast(model.state);
  }
  meter = std::make_unique<StepMeter>(group);
  watch = std::make_unique<GradientWatch>(
      model.trainable,
      GradientWatch::Options{
          group.rank(), options.static_graph, options.find_unused_parameters},
      [this](const GradientWatch::Backward& backward) { end_step(backward); });
  compat::ReducerOptions reducer_options;
  for (const auto& parameter : model.trainable) {
    reducer_options.parameters.push_back(parameter->tensor);
    reducer_options.names.push_back(parameter->name);
  }
  reducer_options.sparse = model.sparse;
  reducer_options.bucket_bytes =
      to_bytes("bucket_cap_mb", options.bucket_cap_mb);
  reducer_options.first_bucket_bytes = std::min(
      reducer_options.bucket_bytes,
      to_bytes("first_bucket_cap_mb", options.first_bucket_cap_mb));
  reducer_options.find_unused_parameters = options.find_unused_parameters;
  reducer_options.static_graph = options.static_graph;
  reducer_options.gradient_as_bucket_view = options.gradient_as_bucket_view;
  reduction = compat::make_reducer(reducer_options, group.impl().process_group);
  if (!options.hook.is_none()) {
    install_hook(options.hook, group);
  }
}

void DdpEngine::Impl::broadcast(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty() || group.size() == 1) {
    return;
  }
  const at::NoGradGuard no_grad;
  c10d::broadcast_coalesced(
      group.impl().process_group, tensors, kBroadcastChunkBytes, /*rank=*/0);
}

void DdpEngine::before_forward() {
  Impl& impl = *impl_;
  impl.meter->begin_forward();
  const bool grad_enabled = c10::GradMode::is_enabled();
  impl.syncing = grad_enabled && impl.sync;
  if (impl.syncing) {
    if (impl.failed()) {
      impl.recover();
    }
    impl.watch->reattach();
    impl.reducer().prepare_for_forward();
  }
  if (grad_enabled) {
    impl.rebuild_buckets();
  }
  if (impl.options.broadcast_buffers && impl.syncing) {
    impl.broadcast(impl.model.buffers);
  }
}

bool DdpEngine::Impl::failed() const {
  return adapter && adapter->failed_bucket().has_value();
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

void DdpEngine::Impl::rebuild_buckets() {
  try {
    if (reducer().rebuild_buckets()) {
      rebuilt = true;
      if (adapter) {
        adapter->layout_changed();
      }
    }
  } catch (const c10::Error& error) {
    explain_unfinished(error);
  }
}

void DdpEngine::Impl::explain_unfinished(const c10::Error& error) const {
  const auto names = watch->missing();
  if (names.empty()) {
    fail("ddp", error.what_without_backtrace(), " (rank ", group.rank(), ")");
  }
  const char* advice =
      options.static_graph
          ? "the graph changed, which static_graph does not allow"
      : options.find_unused_parameters
          ? "return every tensor that takes part in the loss from forward()"
          : "set find_unused_parameters, or do not compute what the loss does "
            "not "
            "use";
  fail(
      "ddp",
      "the last backward did not finish: ",
      names.size(),
      " of ",
      model.trainable.size(),
      " parameters got no gradient: ",
      join(names),
      "; ",
      advice,
      " (rank ",
      group.rank(),
      ")");
}

void DdpEngine::after_forward(const std::vector<at::Tensor*>& outputs) {
  Impl& impl = *impl_;
  if (impl.syncing) {
    const bool search =
        impl.options.find_unused_parameters && !impl.options.static_graph;
    std::vector<at::Tensor> roots;
    const at::Tensor* first = nullptr;
    for (const at::Tensor* output : outputs) {
      if (output->defined() && output->requires_grad()) {
        first = first ? first : output;
        if (search) {
          roots.push_back(*output);
        }
      }
    }
    impl.reducer().prepare_for_backward(roots);
    if (impl.adapter) {
      impl.adapter->begin_backward();
    }
    impl.watch->arm();
    if (first != nullptr) {
      impl.watch->watch_output(*first);
    }
    if (impl.needs_sink()) {
      attach_sink(outputs, [weak = std::weak_ptr<Impl>(impl_)] {
        if (const auto alive = weak.lock()) {
          alive->on_sink_backward();
        }
      });
    }
  }
  impl.meter->end_forward();
}

bool DdpEngine::Impl::needs_sink() const {
  return options.static_graph ? !delayed_reduction_queued
                              : options.find_unused_parameters;
}

// The first backward of a static graph is reduced as a whole, at its end.
void DdpEngine::Impl::on_sink_backward() {
  if (options.static_graph && !delayed_reduction_queued) {
    delayed_reduction_queued = true;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [reducer = reduction.reducer] { reducer->delay_all_reduce(); });
  }
}

void DdpEngine::Impl::end_step(const GradientWatch::Backward& backward) {
  if (options.gradient_as_bucket_view) {
    make_gradients_plain();
  }
  meter->end_step(backward, hook_text);
}

// torch::optim's zero_grad() detaches gradients in place, which autograd
// refuses for views. The same memory under a tensor that is not one suits both.
void DdpEngine::Impl::make_gradients_plain() {
  for (const auto& parameter : model.trainable) {
    at::Tensor& gradient = parameter->tensor.mutable_grad();
    if (gradient.defined() && gradient.is_view()) {
      gradient = gradient.detach();
    }
  }
}

bool DdpEngine::sync() const {
  return impl_->sync;
}

void DdpEngine::set_sync(bool on) {
  impl_->sync = on;
}

void DdpEngine::set_hook(
    const HookChoice& choice, const std::optional<Group>& group) {
  Impl& impl = *impl_;
  std::string text;
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
    adapter = std::make_unique<HookAdapter>(model.trainable, group.rank());
    reducer().register_comm_hook(adapter->make_comm_hook());
  }
  adapter->set_hook(std::move(hook), choice.text());
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
  } else if (meter->steps() > 0) {
    stats.bucket_sent = plain;
  }
}

void DdpEngine::save_hook_state(const std::string& folder) {
  Impl& impl = *impl_;
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

Stats DdpEngine::stats() const {
  const Impl& impl = *impl_;
  Stats stats;
  stats.hook = impl.hook_text;
  stats.rank = impl.group.rank();
  stats.world = impl.group.size();
  for (const auto& parameter : impl.model.trainable) {
    stats.parameters += parameter->tensor.numel();
  }
  impl.report_buckets(stats);
  stats.rebuilt = impl.rebuilt;
  impl.meter->report(stats);
  return stats;
}

}  // namespace gradwire
