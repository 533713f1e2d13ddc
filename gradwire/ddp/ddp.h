#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/ddp/engine.h"
#include "gradwire/ddp/inputs.h"
#include "gradwire/ddp/options.h"
#include "gradwire/ddp/outputs.h"
#include "gradwire/ddp/stats.h"

namespace gradwire {

namespace detail {

template <class M>
struct ModuleOf {
  using type = typename M::ContainedType;  // a TORCH_MODULE holder
  static std::shared_ptr<type> pointer(const M& holder) {
    return holder.is_empty() ? nullptr : holder.ptr();
  }
};
template <class M>
struct ModuleOf<std::shared_ptr<M>> {
  using type = M;
  static std::shared_ptr<M> pointer(const std::shared_ptr<M>& module) {
    return module;
  }
};

}  // namespace detail

// While it lives, backward leaves gradients local and accumulates them; the
// first averaged backward afterwards averages the accumulated ones. What counts
// is that the forward runs inside.
class NoSync {
 public:
  explicit NoSync(DdpEngine& engine) : engine_(engine), before_(engine.sync()) {
    engine_.set_sync(false);
  }
  ~NoSync() {
    engine_.set_sync(before_);
  }
  NoSync(const NoSync&) = delete;

 private:
  DdpEngine& engine_;
  bool before_;
};

// What `ddp->` reaches: the wrapped module's forward with averaging around it,
// and the wrapped module's own parameters, names and mode.
template <class Module>
class DdpHandle {
 public:
  DdpHandle(
      std::shared_ptr<Module> module,
      const Group& group,
      const DistributedDataParallelOptions& options)
      : module_(std::move(module)), engine_(module_, group, options) {}

  // Passes the arguments on and returns what the module returns. Collective
  // when gradients are enabled and averaged: buffers are broadcast first.
  template <class... Args>
  auto forward(Args&&... args) {
    engine_.before_forward();
    auto output = forward_module(std::forward<Args>(args)...);
    engine_.after_forward(tensors_in(output));
    return output;
  }

  [[nodiscard]] NoSync no_sync() {
    return NoSync(engine_);
  }

  // Exchanges the hook between two iterations; "none" goes back to plain
  // averaging. Collective: all ranks with the same hook, or all of them throw.
  void set_hook(const HookChoice& hook) {
    engine_.set_hook(hook);
  }
  // The canonical spec of the hook in use.
  const std::string& hook() const {
    return engine_.hook();
  }
  // What the hook remembers (residuals of error feedback and such), one file a
  // rank in `folder`, replaced atomically. Between two iterations. Collective:
  // all ranks write, or all of them throw.
  void save_hook_state(const std::string& folder) {
    engine_.save_hook_state(folder);
  }
  // Training goes on with the same bits. Refused, on every rank, for another
  // model or hook; in another world what ranks owe is handed on so that its sum
  // stays the same, or refused where `strict`. Collective.
  void load_hook_state(
      const std::string& folder, const LoadHookState& options = {}) {
    engine_.load_hook_state(folder, options);
  }
  Stats stats() const {
    return engine_.stats();
  }

  // The module itself: its forward communicates nothing.
  const std::shared_ptr<Module>& module() const {
    return module_;
  }
  // Each parameter once, tied or not, as optimizers want them.
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> result;
    for (const auto& item : module_->named_parameters()) {
      const auto& tensor = item.value();
      const bool seen = std::ranges::any_of(
          result, [&](const auto& other) { return other.is_same(tensor); });
      if (!seen) {
        result.push_back(tensor);
      }
    }
    return result;
  }
  auto named_parameters() const {
    return module_->named_parameters();
  }
  auto buffers() const {
    return module_->buffers();
  }
  auto named_buffers() const {
    return module_->named_buffers();
  }
  void train(bool on = true) {
    module_->train(on);
  }
  void eval() {
    module_->eval();
  }
  bool is_training() const {
    return module_->is_training();
  }
  void zero_grad(bool set_to_none = true) {
    module_->zero_grad(set_to_none);
  }

  // For the rooms beside this one.
  DdpEngine& engine() {
    return engine_;
  }

 private:
  template <class... Args>
  auto forward_module(Args&&... args) {
    const DdpEngine::ForwardScope scope(engine_);
    if (const auto type = engine_.input_type()) {
      return module_->forward(
          detail::Input<Args>(std::forward<Args>(args), *type).pass()...);
    }
    return module_->forward(std::forward<Args>(args)...);
  }

  std::shared_ptr<Module> module_;
  DdpEngine engine_;
};

// Data-parallel training of one module: every rank has a replica, backward
// averages the gradients of all ranks while it runs, and so equal replicas stay
// equal. Wraps a TORCH_MODULE holder or a shared_ptr to a module.
//
// A handle: copies are the same DDP. Not thread safe. The constructor,
// forward, backward and set_hook are collective. Parameters must not be added,
// frozen or replaced while it lives.
template <class M>
class DistributedDataParallel {
 public:
  using Module = typename detail::ModuleOf<M>::type;

  DistributedDataParallel(
      M module,
      const Group& group,
      const DistributedDataParallelOptions& options = {})
      : handle_(std::make_shared<DdpHandle<Module>>(
            detail::ModuleOf<M>::pointer(module), group, options)) {}

  DdpHandle<Module>* operator->() const {
    return handle_.get();
  }
  DdpHandle<Module>& operator*() const {
    return *handle_;
  }
  template <class... Args>
  auto operator()(Args&&... args) const {
    return handle_->forward(std::forward<Args>(args)...);
  }

 private:
  std::shared_ptr<DdpHandle<Module>> handle_;
};

// torch::save(ddp, path) writes what torch::save(module, path) would, and
// torch::load(ddp, path) reads it.
template <class M>
torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive,
    const DistributedDataParallel<M>& ddp) {
  ddp->module()->save(archive);
  return archive;
}
template <class M>
torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive, DistributedDataParallel<M>& ddp) {
  ddp->module()->load(archive);
  return archive;
}

}  // namespace gradwire
