#include "gradwire/ddp/engine.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <torch/csrc/autograd/engine.h>

#include <cmath>

#include "gradwire/base/error.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/ddp/engine_impl.h"
#include "gradwire/ddp/sink.h"

namespace gradwire {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr std::size_t kBroadcastChunkBytes = 250u << 20;

std::int64_t bucket_cap_bytes(const char* option, double mb) {
  if (!std::isfinite(mb) || mb <= 0 || mb > 1e6) {
    fail("ddp", option, " is ", mb, ", expected more than 0 and at most 1e6");
  }
  return static_cast<std::int64_t>(std::ceil(mb * kMiB));
}

}  // namespace

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
  bucket_cap_bytes("bucket_cap_mb", options.bucket_cap_mb);
  bucket_cap_bytes("first_bucket_cap_mb", options.first_bucket_cap_mb);
  model = inspect_model(*module, options);
  auto precision_facts = inspect_precision(options.precision);
  first_hook = hook_in_type(options.hook, options.precision.reduction);
  first_hook->check_free(nullptr);
  std::vector<Fact> result{
      {"hook", first_hook->text()},
      {"bucket_cap_mb", concat(options.bucket_cap_mb)},
      {"first_bucket_cap_mb", concat(options.first_bucket_cap_mb)},
      {"find_unused_parameters", concat(options.find_unused_parameters)},
      {"static_graph", concat(options.static_graph)},
      {"gradient_as_bucket_view", concat(options.gradient_as_bucket_view)},
      {"broadcast_buffers", concat(options.broadcast_buffers)},
      {"init_sync", concat(options.init_sync)}};
  result.insert(result.end(), precision_facts.begin(), precision_facts.end());
  result.insert(result.end(), model.facts.begin(), model.facts.end());
  return result;
}

void DdpEngine::Impl::construct() {
  group = parent.duplicate("ddp");
  if (options.init_sync) {
    broadcast(model.state);
  }
  watch = std::make_unique<GradientWatch>(
      model.trainable,
      GradientWatch::Options{
          group.rank(), options.static_graph, options.find_unused_parameters},
      [this] { join_backward(); },
      [this](const Step& watched) { end_step(watched); });
  compat::ReducerOptions reducer_options;
  for (const auto& parameter : model.trainable) {
    reducer_options.parameters.push_back(parameter->tensor);
    reducer_options.names.push_back(parameter->name);
  }
  reducer_options.sparse = model.sparse;
  reducer_options.bucket_bytes =
      bucket_cap_bytes("bucket_cap_mb", options.bucket_cap_mb);
  reducer_options.first_bucket_bytes = std::min(
      reducer_options.bucket_bytes,
      bucket_cap_bytes("first_bucket_cap_mb", options.first_bucket_cap_mb));
  reducer_options.find_unused_parameters = options.find_unused_parameters;
  reducer_options.static_graph = options.static_graph;
  reducer_options.gradient_as_bucket_view = options.gradient_as_bucket_view;
  reduction = compat::make_reducer(reducer_options, group.impl().process_group);
  hooked =
      HookedReducer::make(reduction.reducer, model.trainable, parent, group);
  masters = make_masters(model, options.precision);
  if (masters) {
    // A hook may step the parameters of a bucket as soon as it has their
    // average, on a thread of its own: it finds the masters. All parameters of
    // a bucket are done with by then, those without a gradient too.
    hooked->before_each_bucket([masters = masters](const Bucket& bucket) {
      masters->restore(bucket);
    });
  }
  hooked->install(*first_hook);
}

void DdpEngine::Impl::broadcast(
    const std::vector<at::Tensor>& tensors, int root) {
  if (tensors.empty() || group.size() == 1) {
    return;
  }
  const at::NoGradGuard no_grad;
  c10d::broadcast_coalesced(
      group.impl().process_group, tensors, kBroadcastChunkBytes, root);
}

void DdpEngine::before_forward() {
  Impl& impl = *impl_;
  impl.forward_began = Step::Clock::now();
  const bool grad_enabled = c10::GradMode::is_enabled();
  impl.syncing = grad_enabled && impl.sync;
  const int root = impl.join_forward(grad_enabled);
  if (impl.syncing) {
    if (impl.hooked->failed()) {
      impl.recover();
    }
    impl.watch->reattach();
    impl.reducer().prepare_for_forward();
  }
  if (grad_enabled) {
    impl.rebuild_buckets();
  }
  if (impl.options.broadcast_buffers && impl.syncing) {
    impl.broadcast(impl.model.buffers, root);
  }
}

void DdpEngine::Impl::check_finished() {
  try {
    if (!hooked->failed()) {
      reducer().check_finalized();
    }
  } catch (const c10::Error& error) {
    explain_unfinished(error);
  }
}

void DdpEngine::Impl::rebuild_buckets() {
  try {
    reducer().rebuild_buckets();
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

DdpEngine::ForwardScope::ForwardScope(DdpEngine& engine)
    : masters_(engine.impl_->masters.get()) {
  if (masters_ != nullptr) {
    masters_->begin_forward();
  }
}

DdpEngine::ForwardScope::~ForwardScope() {
  if (masters_ != nullptr) {
    masters_->end_forward();
  }
}

std::optional<at::ScalarType> DdpEngine::input_type() const {
  const MixedPrecision& precision = impl_->options.precision;
  return precision.cast_inputs ? precision.parameters : std::nullopt;
}

void DdpEngine::after_forward(const std::vector<at::Tensor*>& outputs) {
  Impl& impl = *impl_;
  if (impl.masters && c10::GradMode::is_enabled()) {
    impl.masters->watch_outputs(outputs);
  }
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
    impl.hooked->begin_step(impl.forward_began);
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

void DdpEngine::Impl::end_step(const Step& watched) {
  if (options.gradient_as_bucket_view) {
    make_gradients_plain();
  }
  hooked->end_step(watched);
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

Stats DdpEngine::stats() const {
  return impl_->hooked->stats();
}

}  // namespace gradwire
