#pragma once

#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradwire/rpc/objects.h"
#include "gradwire/rpc/rpc.h"

namespace gradwire::rpc {

namespace detail {

// Of a class: one method may be inherited by several.
template <class T, auto Method>
struct MethodTag {};

template <class M>
struct MethodTraits;
template <class C, class R, class... Args>
struct MethodTraits<R (C::*)(Args...)> {
  using Class = C;
  using Result = std::decay_t<R>;
  using Arguments = std::tuple<std::decay_t<Args>...>;
};
template <class C, class R, class... Args>
struct MethodTraits<R (C::*)(Args...) const> : MethodTraits<R (C::*)(Args...)> {
};

// The name by which handles of T are known.
template <class T>
std::string class_name() {
  if (auto name = name_of_type(typeid(T))) {
    return *name;
  }
  if constexpr (Sendable<T>) {
    return Wire<T>::name();
  } else {
    fail(
        "rpc",
        "the class ",
        typeid(T).name(),
        " is not registered: call gradwire::rpc::register_class first");
  }
}

template <class T>
std::shared_ptr<T> local(std::int64_t object) {
  return std::static_pointer_cast<T>(
      local_object(object, class_name<T>(), typeid(T)));
}

}  // namespace detail

// A handle of an object that lives on one worker and is used from any. It can
// be an argument or a result of calls; then the other side has a handle too.
// The object is freed when the last handle anywhere is gone, or a lease after
// the process of the last one died. A value: copies are the same handle. Thread
// safe.
template <class T>
class Remote {
 public:
  // Of nothing.
  Remote() = default;
  explicit Remote(HoldPtr hold) : hold_(std::move(hold)) {}

  // Makes a T on `to` with one of the constructors registered there. What the
  // constructor throws is thrown here as a RemoteError.
  template <class... Args>
  static Remote create(const To& to, const Args&... arguments) {
    return create_async(to, arguments...).wait();
  }
  template <class... Args>
  static Reply<Remote> create_async(const To& to, const Args&... arguments) {
    return call_async<Remote>(
        to, concat(detail::class_name<T>(), ".new"), arguments...);
  }
  // Makes this worker the owner of a T that exists.
  static Remote own(std::shared_ptr<T> object) {
    return Remote(detail::add_object(
        std::move(object), detail::class_name<T>(), typeid(T)));
  }

  bool valid() const {
    return hold_ != nullptr;
  }
  // The worker on which the object lives.
  WorkerInfo owner() const {
    return workers().at(static_cast<std::size_t>(hold().owner()));
  }

  // The same handle for calls that may take this long.
  Remote within(std::chrono::milliseconds timeout) const {
    Remote result = *this;
    result.timeout_ = timeout;
    return result;
  }

  // handle.invoke<&Counter::add>(3): calls a registered method on the owner.
  template <auto Method, class... Args>
  auto invoke(const Args&... arguments) const {
    return invoke_async<Method>(arguments...).wait();
  }
  template <auto Method, class... Args>
  auto invoke_async(const Args&... arguments) const {
    using Traits = detail::MethodTraits<decltype(Method)>;
    static_assert(
        std::derived_from<T, typename Traits::Class>,
        "the method belongs to another class");
    const auto name =
        detail::name_of_type(typeid(detail::MethodTag<T, Method>));
    if (!name) {
      fail(
          "rpc",
          "a method of ",
          detail::class_name<T>(),
          " is not registered: add it with "
          "register_class<...>().method<...>()");
    }
    return send_method<typename Traits::Result>(
        *name, typename Traits::Arguments(arguments...));
  }

  // A copy of the object's value.
  T fetch() const requires Sendable<T> {
    return call<T>(
        to(), concat(detail::class_name<T>(), ".fetch"), hold().object());
  }

  // The object itself, on its owner.
  std::shared_ptr<T> local() const {
    if (hold().owner() != self().id) {
      fail(
          "rpc",
          "the object lives on worker '",
          owner().name,
          "' and cannot be used on worker '",
          self().name,
          "'");
    }
    return detail::local<T>(hold().object());
  }

  // Gives up this handle; it is empty afterwards.
  void release() {
    hold();
    hold_ = nullptr;
  }

  const ObjectHold& hold() const {
    if (!hold_) {
      fail("rpc", "the handle is empty: it was released or never made");
    }
    return *hold_;
  }

 private:
  To to() const {
    To to(owner());
    to.timeout = timeout_;
    return to;
  }

  template <class R, class... Args>
  Reply<R> send_method(
      const std::string& name, const std::tuple<Args...>& arguments) const {
    // The object outlives the call even if the handle does not.
    auto reply = std::apply(
        [&](const auto&... each) {
          return call_async<R>(to(), name, hold().object(), each...);
        },
        arguments);
    reply.raw().keep_until_done(hold_);
    return reply;
  }

  HoldPtr hold_;
  std::optional<std::chrono::milliseconds> timeout_;
};

template <class T>
struct Wire<Remote<T>> {
  static std::string name() {
    return concat("Remote<", detail::class_name<T>(), ">");
  }
  static c10::IValue pack(const Remote<T>& handle) {
    return detail::pack_hold(handle.hold());
  }
  static Remote<T> unpack(const c10::IValue& packed) {
    return Remote<T>(detail::unpack_hold(packed, name()));
  }
};

// Handles of tensors that live here, such as the parameters of a DDP.
inline std::vector<Remote<at::Tensor>> own_tensors(
    const std::vector<at::Tensor>& tensors) {
  std::vector<Remote<at::Tensor>> result;
  result.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    result.push_back(
        Remote<at::Tensor>::own(std::make_shared<at::Tensor>(tensor)));
  }
  return result;
}

// What other workers may do with a T: see register_class.
template <class T>
class ClassRegistration {
 public:
  explicit ClassRegistration(std::string name) : name_(std::move(name)) {}

  // Lets others make a T from these.
  template <class... Args>
  ClassRegistration& constructor() {
    return factory([](const std::decay_t<Args>&... arguments) {
      return std::make_shared<T>(arguments...);
    });
  }
  // The same with a function that returns a shared_ptr<T>. A class has one
  // constructor or one factory.
  template <class Make>
  ClassRegistration& factory(Make make) {
    add_factory(std::function(std::move(make)));
    return *this;
  }

  // Lets others call it, by Remote<T>::invoke<Method>.
  template <auto Method>
  ClassRegistration& method(const std::string& method_name) {
    using Traits = detail::MethodTraits<decltype(Method)>;
    const std::string name = concat(name_, ".", method_name);
    add_method<Method>(name, static_cast<typename Traits::Arguments*>(nullptr));
    detail::name_type(typeid(detail::MethodTag<T, Method>), name);
    return *this;
  }

 private:
  template <class... Args>
  void add_factory(std::function<std::shared_ptr<T>(Args...)> make) {
    register_function(
        concat(name_, ".new"),
        std::function(
            [make = std::move(make)](const std::decay_t<Args>&... arguments) {
              return Remote<T>::own(make(arguments...));
            }));
  }

  template <auto Method, class... Args>
  void add_method(const std::string& name, std::tuple<Args...>*) {
    // The object lives as long as the call.
    register_function(
        name, std::function([](std::int64_t object, const Args&... arguments) {
          const auto target = detail::local<T>(object);
          return ((*target).*Method)(arguments...);
        }));
  }

  std::string name_;
};

// Lets other workers hold objects of class T:
//
//   register_class<Counter>("Counter")
//       .constructor<std::int64_t>()
//       .method<&Counter::add>("add");
//
// Register the class under the same name on the worker where objects are made
// and on those that use them. Several methods run at once, on threads of their
// own.
template <class T>
ClassRegistration<T> register_class(const std::string& name) {
  detail::name_type(typeid(T), name);
  if constexpr (Sendable<T>) {
    register_function(
        concat(name, ".fetch"), std::function([](std::int64_t object) {
          return *detail::local<T>(object);
        }));
  }
  return ClassRegistration<T>(name);
}

}  // namespace gradwire::rpc
