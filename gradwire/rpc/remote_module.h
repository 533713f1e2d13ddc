#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/remote.h"

namespace gradwire::rpc {

namespace detail {

// The module class behind a TORCH_MODULE holder, or the class itself.
template <class M>
struct RemoteModuleOf {
  using type = M;
};
template <class M>
requires requires {
  typename M::ContainedType;
}
struct RemoteModuleOf<M> {
  using type = typename M::ContainedType;
};

struct Place {
  std::string worker;
  std::string device;
};
// Of "worker4/cuda:0", "worker4" or "rank:4/cpu". Throws Error for a worker
// that does not exist.
Place parse_place(const std::string& place);

// On the owner. Throws Error for a device that is unknown or not available.
void move_to(torch::nn::Module& module, const std::string& device);
std::map<std::string, at::Tensor> state_of(const torch::nn::Module& module);
void load_state(
    torch::nn::Module& module, const std::map<std::string, at::Tensor>& state);

}  // namespace detail

// Lets other workers make modules of class M and call their forward. M is a
// TORCH_MODULE holder or a class derived from torch::nn::Module; `make` returns
// a shared_ptr to one. Register the class under the same name on the worker
// where modules are made and on those that use them.
template <class M, class R, class... Args>
void register_module_factory(
    const std::string& name, std::function<R(Args...)> make) {
  using Module = typename detail::RemoteModuleOf<M>::type;
  register_class<Module>(name)
      .factory(std::function([make = std::move(make)](
                                 const std::string& device,
                                 const std::decay_t<Args>&... arguments) {
        std::shared_ptr<Module> module = make(arguments...);
        detail::move_to(*module, device);
        return module;
      }))
      .template method<&Module::forward>("forward");
  const auto serve = [&](const char* function, auto call) {
    register_function(concat(name, ".", function), std::move(call));
  };
  serve("parameters", [](std::int64_t object) {
    return own_tensors(detail::local<Module>(object)->parameters());
  });
  serve("state", [](std::int64_t object) {
    return detail::state_of(*detail::local<Module>(object));
  });
  serve(
      "load_state",
      [](std::int64_t object, const std::map<std::string, at::Tensor>& state) {
        detail::load_state(*detail::local<Module>(object), state);
      });
  serve("train", [](std::int64_t object, bool on) {
    detail::local<Module>(object)->train(on);
  });
}
template <class M, class Make>
void register_module_factory(const std::string& name, Make make) {
  register_module_factory<M>(name, std::function(std::move(make)));
}

// The same for modules that are made with the arguments of a constructor:
//
//   register_module<Net, std::int64_t, std::int64_t>("Net");
template <class M, class... Args>
void register_module(const std::string& name) {
  using Module = typename detail::RemoteModuleOf<M>::type;
  register_module_factory<M>(name, std::function([](const Args&... arguments) {
                               return std::make_shared<Module>(arguments...);
                             }));
}

// A module that lives on another worker and is called from here. Under an
// autograd::Context its parameters get their gradients there. A handle, which
// can be passed on to other workers: see Remote.
template <class M>
class RemoteModule {
 public:
  using Module = typename detail::RemoteModuleOf<M>::type;

  // Makes an M at a place like "worker4/cpu", "rank:4/cuda:0" or "worker4"
  // (its cpu). Throws Error for a worker that does not exist. Throws
  // RemoteError with the owner's text for a device that does not exist and for
  // what the constructor throws.
  template <class... Args>
  explicit RemoteModule(const std::string& place, const Args&... arguments)
      : RemoteModule(detail::parse_place(place), arguments...) {}
  explicit RemoteModule(Remote<Module> remote) : remote_(std::move(remote)) {}

  template <class... Args>
  auto forward(const Args&... arguments) const {
    return remote_.template invoke<&Module::forward>(arguments...);
  }
  template <class... Args>
  auto forward_async(const Args&... arguments) const {
    return remote_.template invoke_async<&Module::forward>(arguments...);
  }

  // Handles of its parameters, for DistributedOptimizer.
  std::vector<Remote<at::Tensor>> remote_parameters() const {
    return call_module<std::vector<Remote<at::Tensor>>>("parameters");
  }

  // Copies of parameters and buffers by name, and back. Loading throws a
  // RemoteError, with nothing changed, when names or shapes differ.
  std::map<std::string, at::Tensor> state() const {
    return call_module<std::map<std::string, at::Tensor>>("state");
  }
  void load_state(const std::map<std::string, at::Tensor>& state) const {
    call_module<void>("load_state", state);
  }
  void train(bool on = true) const {
    call_module<void>("train", on);
  }
  void eval() const {
    train(false);
  }

  const Remote<Module>& remote() const {
    return remote_;
  }

 private:
  template <class... Args>
  RemoteModule(const detail::Place& place, const Args&... arguments)
      : remote_(
            Remote<Module>::create(place.worker, place.device, arguments...)) {}

  template <class R, class... Args>
  R call_module(const char* function, const Args&... arguments) const {
    return call<R>(
        remote_.owner(),
        concat(detail::class_name<Module>(), ".", function),
        remote_.hold().object(),
        arguments...);
  }

  Remote<Module> remote_;
};

template <class M>
struct Wire<RemoteModule<M>> {
  using Handle = Remote<typename RemoteModule<M>::Module>;
  static std::string name() {
    return Wire<Handle>::name();
  }
  static c10::IValue pack(const RemoteModule<M>& module) {
    return Wire<Handle>::pack(module.remote());
  }
  static RemoteModule<M> unpack(const c10::IValue& packed) {
    return RemoteModule<M>(Wire<Handle>::unpack(packed));
  }
};

}  // namespace gradwire::rpc
