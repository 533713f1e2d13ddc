#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradwire/rpc/value.h"

namespace gradwire::rpc {

// A function other workers may call, with its types forgotten.
struct Function {
  // "(Tensor, int) -> Tensor"; a call must say the same.
  std::string signature;
  // Gets as many arguments as the signature says.
  std::function<c10::IValue(const std::vector<c10::IValue>&)> invoke;
  std::size_t arity = 0;
};

// The name consists of letters, digits, '_' and '.' and does not begin with
// "gradwire.". Throws Error for any other name and for one that is registered
// already. Thread safe.
void add_function(const std::string& name, Function function);

namespace detail {

template <class R, class... Args, class Call, std::size_t... I>
c10::IValue invoke_unpacked(
    const Call& call,
    const std::vector<c10::IValue>& arguments,
    std::index_sequence<I...>) {
  // Braces: all of them are checked, from left to right, before the call.
  std::tuple<std::decay_t<Args>...> values{
      Wire<std::decay_t<Args>>::unpack(arguments[I])...};
  if constexpr (std::is_void_v<R>) {
    call(std::get<I>(values)...);
    return {};
  } else {
    return Wire<std::decay_t<R>>::pack(call(std::get<I>(values)...));
  }
}

template <class R, class... Args>
Function make_function(std::function<R(Args...)> call) {
  static_assert(
      (Sendable<std::decay_t<Args>> && ...),
      "an argument's type cannot be sent: it has no gradwire::rpc::Wire");
  static_assert(
      std::is_void_v<R> || Sendable<std::decay_t<R>>,
      "the result's type cannot be sent: it has no gradwire::rpc::Wire");
  return {
      signature<std::decay_t<R>, std::decay_t<Args>...>(),
      [call = std::move(call)](const std::vector<c10::IValue>& arguments) {
        return invoke_unpacked<R, Args...>(
            call, arguments, std::index_sequence_for<Args...>());
      },
      sizeof...(Args)};
}

}  // namespace detail

// Lets other workers call `callable` under this name: a function or a lambda
// whose arguments and result are Sendable. May be called before or after
// init(). Several calls run at once, on threads of their own, so `callable`
// must be thread safe.
template <class Callable>
void register_function(const std::string& name, Callable callable) {
  add_function(name, detail::make_function(std::function(std::move(callable))));
}

}  // namespace gradwire::rpc
