#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gradwire/base/text.h"

namespace gradwire::rpc {

// How a C++ type travels between workers: its name in signatures, and its
// conversion to and from plain data. Plain data is none, a bool, an int, a
// float, a string, a tensor, a tuple, or a list of bools, ints, floats or
// tensors; a receiver refuses anything else. Lists and maps of C++ are tuples.
//
// A type without a Wire cannot be an argument or a result, which is an error
// at compile time. Programs may add a Wire for types of their own.
template <class T>
struct Wire;

template <class T>
concept Sendable = requires(const T& value, const c10::IValue& packed) {
  { Wire<T>::name() } -> std::convertible_to<std::string>;
  { Wire<T>::pack(value) } -> std::same_as<c10::IValue>;
  { Wire<T>::unpack(packed) } -> std::convertible_to<T>;
};

// What an argument is on the wire: const char* is a string and so on.
template <class T>
struct WireType {
  using type = std::decay_t<T>;
};
template <class T>
requires std::convertible_to<T, std::string> &&
    (!std::same_as<std::decay_t<T>, std::string>)struct WireType<T> {
  using type = std::string;
};
template <class T>
using wire_t = typename WireType<T>::type;

// A tensor as it is sent. Throws Error for a tensor that cannot be sent:
// undefined (send an empty optional instead), quantized, in a compressed sparse
// layout or not on the cpu. Small tensors that need no gradient travel as their
// bytes: Torch sends every tensor in a message part of its own, which takes
// longer than the rest of a small call.
c10::IValue pack_tensor(const at::Tensor& tensor);
at::Tensor unpack_tensor(const c10::IValue& packed);
// Throws the Error for a number that does not fit into 64 bits with a sign.
[[noreturn]] void refuse_number(std::uint64_t value);
// Throws the Error for a received value that is not of the expected type.
[[noreturn]] void refuse_value(
    const c10::IValue& got, const std::string& expected);
// The elements of a received tuple. Throws Error for a value that is not a
// tuple or does not have the expected length.
std::vector<c10::IValue> elements_of(
    const c10::IValue& packed,
    const std::string& expected,
    std::optional<std::size_t> length = {});
c10::IValue pack_tuple(std::vector<c10::IValue> elements);

template <>
struct Wire<at::Tensor> {
  static std::string name() {
    return "Tensor";
  }
  static c10::IValue pack(const at::Tensor& value) {
    return pack_tensor(value);
  }
  static at::Tensor unpack(const c10::IValue& packed) {
    return unpack_tensor(packed);
  }
};

template <>
struct Wire<bool> {
  static std::string name() {
    return "bool";
  }
  static c10::IValue pack(bool value) {
    return value;
  }
  static bool unpack(const c10::IValue& packed) {
    if (!packed.isBool()) {
      refuse_value(packed, name());
    }
    return packed.toBool();
  }
};

template <std::integral T>
struct Wire<T> {
  static std::string name() {
    return "int";
  }
  static c10::IValue pack(T value) {
    if (!std::in_range<std::int64_t>(value)) {
      refuse_number(value);
    }
    return static_cast<std::int64_t>(value);
  }
  static T unpack(const c10::IValue& packed) {
    if (!packed.isInt() || !std::in_range<T>(packed.toInt())) {
      refuse_value(packed, name());
    }
    return static_cast<T>(packed.toInt());
  }
};

template <std::floating_point T>
struct Wire<T> {
  static std::string name() {
    return "float";
  }
  static c10::IValue pack(T value) {
    return static_cast<double>(value);
  }
  static T unpack(const c10::IValue& packed) {
    if (!packed.isDouble()) {
      refuse_value(packed, name());
    }
    return static_cast<T>(packed.toDouble());
  }
};

template <>
struct Wire<std::string> {
  static std::string name() {
    return "str";
  }
  static c10::IValue pack(const std::string& value) {
    return value;
  }
  static std::string unpack(const c10::IValue& packed) {
    if (!packed.isString()) {
      refuse_value(packed, name());
    }
    return packed.toStringRef();
  }
};

template <class T>
struct Wire<std::optional<T>> {
  static std::string name() {
    return concat("optional<", Wire<T>::name(), ">");
  }
  static c10::IValue pack(const std::optional<T>& value) {
    return value ? Wire<T>::pack(*value) : c10::IValue();
  }
  static std::optional<T> unpack(const c10::IValue& packed) {
    return packed.isNone() ? std::nullopt
                           : std::optional<T>(Wire<T>::unpack(packed));
  }
};

template <class T>
struct Wire<std::vector<T>> {
  static std::string name() {
    return concat("list<", Wire<T>::name(), ">");
  }
  static c10::IValue pack(const std::vector<T>& values) {
    std::vector<c10::IValue> elements;
    elements.reserve(values.size());
    for (const auto& value : values) {
      elements.push_back(Wire<T>::pack(value));
    }
    return pack_tuple(std::move(elements));
  }
  static std::vector<T> unpack(const c10::IValue& packed) {
    std::vector<T> values;
    for (const auto& element : elements_of(packed, name())) {
      values.push_back(Wire<T>::unpack(element));
    }
    return values;
  }
};

// std::map and std::unordered_map: a list of pairs.
template <class Map>
struct WireMap {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;

  static std::string name() {
    return concat("map<", Wire<Key>::name(), ", ", Wire<Value>::name(), ">");
  }
  static c10::IValue pack(const Map& map) {
    std::vector<c10::IValue> elements;
    elements.reserve(map.size());
    for (const auto& [key, value] : map) {
      elements.push_back(
          pack_tuple({Wire<Key>::pack(key), Wire<Value>::pack(value)}));
    }
    return pack_tuple(std::move(elements));
  }
  static Map unpack(const c10::IValue& packed) {
    Map map;
    for (const auto& element : elements_of(packed, name())) {
      const auto pair = elements_of(element, name(), 2);
      map.emplace(Wire<Key>::unpack(pair[0]), Wire<Value>::unpack(pair[1]));
    }
    return map;
  }
};
template <class Key, class Value>
struct Wire<std::map<Key, Value>> : WireMap<std::map<Key, Value>> {};
template <class Key, class Value>
struct Wire<std::unordered_map<Key, Value>>
    : WireMap<std::unordered_map<Key, Value>> {};

template <class... Ts>
struct Wire<std::tuple<Ts...>> {
  static std::string name() {
    return concat("tuple<", names<Ts...>(), ">");
  }
  static c10::IValue pack(const std::tuple<Ts...>& values) {
    return std::apply(
        [](const Ts&... each) { return pack_tuple({Wire<Ts>::pack(each)...}); },
        values);
  }
  static std::tuple<Ts...> unpack(const c10::IValue& packed) {
    const auto elements = elements_of(packed, name(), sizeof...(Ts));
    return unpack_each(elements, std::index_sequence_for<Ts...>());
  }

  template <class... Each>
  static std::string names() {
    std::string result;
    ((result += concat(result.empty() ? "" : ", ", Wire<Each>::name())), ...);
    return result;
  }

 private:
  template <std::size_t... I>
  static std::tuple<Ts...> unpack_each(
      const std::vector<c10::IValue>& elements, std::index_sequence<I...>) {
    return {Wire<Ts>::unpack(elements[I])...};
  }
};

template <class A, class B>
struct Wire<std::pair<A, B>> {
  static std::string name() {
    return Wire<std::tuple<A, B>>::name();
  }
  static c10::IValue pack(const std::pair<A, B>& value) {
    return pack_tuple(
        {Wire<A>::pack(value.first), Wire<B>::pack(value.second)});
  }
  static std::pair<A, B> unpack(const c10::IValue& packed) {
    const auto elements = elements_of(packed, name(), 2);
    return {Wire<A>::unpack(elements[0]), Wire<B>::unpack(elements[1])};
  }
};

// The result of a function that returns nothing.
template <>
struct Wire<void> {
  static std::string name() {
    return "void";
  }
  static void unpack(const c10::IValue& packed) {
    if (!packed.isNone()) {
      refuse_value(packed, name());
    }
  }
};

// "(Tensor, int) -> list<Tensor>": what caller and worker compare.
template <class R, class... Args>
std::string signature() {
  return concat(
      "(",
      Wire<std::tuple<Args...>>::template names<Args...>(),
      ") -> ",
      Wire<R>::name());
}

}  // namespace gradwire::rpc
