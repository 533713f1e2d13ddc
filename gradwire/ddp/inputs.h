#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradwire/ddp/outputs.h"

// Arguments of forward() with their tensors of floats in another type.

namespace gradwire::detail {

enum class Holds { kUnknown, kNothing, kTensors };

template <class T>
constexpr Holds holds();

constexpr Holds combined(std::initializer_list<Holds> parts) {
  Holds result = Holds::kNothing;
  for (const Holds part : parts) {
    if (part == Holds::kUnknown) {
      return part;
    }
    result = part == Holds::kTensors ? part : result;
  }
  return result;
}

template <class T, std::size_t... I>
constexpr Holds holds_in_tuple(std::index_sequence<I...>) {
  return combined({holds<std::tuple_element_t<I, T>>()...});
}

// The elements are the container's own: a copy of it has others, which those of
// a view (ArrayRef, span) would not be.
template <class T>
concept OwnsElements = std::ranges::input_range<T&> && requires(T& value) {
  {
    *std::ranges::begin(value)
    } -> std::same_as<std::ranges::range_value_t<T&>&>;
  {
    *std::ranges::begin(std::as_const(value))
    } -> std::same_as<const std::ranges::range_value_t<T&>&>;
};

// What a TensorVisitor would find in a T, and whether it could visit one.
template <class T>
constexpr Holds holds() {
  // NOLINTNEXTLINE(bugprone-branch-clone): the order of the cases matters
  if constexpr (std::is_const_v<T> || std::is_reference_v<T>) {
    return Holds::kUnknown;
  } else if constexpr (std::derived_from<T, at::Tensor> || UserVisitable<T>) {
    return Holds::kTensors;
  } else if constexpr (kWithoutTensors<T>) {
    return Holds::kNothing;
  } else if constexpr (MapLike<T>) {
    return holds<typename T::mapped_type>();
  } else if constexpr (OrderedDictLike<T>) {
    return holds<std::remove_reference_t<
        decltype(std::declval<T&>().begin()->value())>>();
  } else if constexpr (OwnsElements<T>) {
    return holds<std::ranges::range_value_t<T&>>();
  } else if constexpr (std::ranges::range<T&>) {
    return Holds::kUnknown;
  } else if constexpr (TupleLike<T>) {
    return holds_in_tuple<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (OptionalLike<T> && requires(T & value) {
                         typename T::value_type;
                       }) {
    return holds<typename T::value_type>();
  } else {
    return Holds::kUnknown;
  }
}

// In place, and differentiable.
void cast_floats(const std::vector<at::Tensor*>& tensors, at::ScalarType type);

// An argument as it is.
template <class Arg>
class PassedInput {
 public:
  PassedInput(Arg&& arg, at::ScalarType) : arg_(arg) {}
  Arg&& pass() {
    return static_cast<Arg&&>(arg_);
  }

 private:
  std::remove_reference_t<Arg>& arg_;
};

// A copy of an argument with its tensors cast.
template <class Arg>
class CastInput {
 public:
  CastInput(Arg&& arg, at::ScalarType type) : copy_(std::forward<Arg>(arg)) {
    cast_floats(tensors_in(copy_), type);
  }
  Arg&& pass() {
    return static_cast<Arg&&>(copy_);
  }

 private:
  std::remove_cvref_t<Arg> copy_;
};

template <class Arg>
using Input = std::conditional_t<
    holds<std::remove_cvref_t<Arg>>() == Holds::kTensors &&
        std::constructible_from<std::remove_cvref_t<Arg>, Arg&&>,
    CastInput<Arg>,
    PassedInput<Arg>>;

}  // namespace gradwire::detail
