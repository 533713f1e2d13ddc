#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <optional>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

namespace gradwire {

// Finds the tensors in whatever a module's forward returns: tensors, vectors,
// arrays, tuples, pairs, optionals, maps and OrderedDicts of them, nested at
// will. A struct of your own takes part through a function beside it:
//
//   template <class Visit>
//   void visit_tensors(Detections& d, Visit&& visit) {
//     visit(d.boxes);
//     visit(d.scores);
//   }
class TensorVisitor {
 public:
  explicit TensorVisitor(std::vector<at::Tensor*>& found) : found_(found) {}

  template <class T>
  void operator()(T& value) const;

 private:
  std::vector<at::Tensor*>& found_;
};

namespace detail {

template <class T>
concept UserVisitable = requires(T& value, const TensorVisitor& visit) {
  visit_tensors(value, visit);
};
template <class T>
concept OptionalLike = requires(T& value) {
  { value.has_value() } -> std::convertible_to<bool>;
  *value;
};
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
concept MapLike = requires {
  typename T::mapped_type;
};
template <class T>
concept OrderedDictLike = requires(T& value) {
  value.begin()->value();
};

template <class T>
inline constexpr bool kWithoutTensors =
    std::is_arithmetic_v<T> || std::is_enum_v<T> ||
    std::convertible_to<T&, std::string_view> ||
    std::same_as<T, std::monostate> || std::same_as<T, std::nullopt_t>;

template <class T>
inline constexpr bool kUnknownOutput = false;

}  // namespace detail

template <class T>
void TensorVisitor::operator()(T& value) const {
  if constexpr (std::derived_from<T, at::Tensor>) {
    found_.push_back(&value);
  } else if constexpr (detail::UserVisitable<T>) {
    visit_tensors(value, *this);
  } else if constexpr (detail::kWithoutTensors<T>) {
    return;
  } else if constexpr (detail::MapLike<T>) {
    for (auto& entry : value) {
      (*this)(entry.second);
    }
  } else if constexpr (detail::OrderedDictLike<T>) {
    for (auto& item : value) {
      (*this)(item.value());
    }
  } else if constexpr (std::ranges::input_range<T&>) {
    for (auto& item : value) {
      (*this)(item);
    }
  } else if constexpr (detail::TupleLike<T>) {
    std::apply([this](auto&... part) { ((*this)(part), ...); }, value);
  } else if constexpr (detail::OptionalLike<T>) {
    if (value.has_value()) {
      (*this)(*value);
    }
  } else {
    static_assert(
        detail::kUnknownOutput<T>,
        "gradwire does not know how to find the tensors in what this module's "
        "forward returns: define visit_tensors(YourType&, visit) beside the "
        "type, see gradwire/ddp/outputs.h");
  }
}

// Pointers to all tensors in `value`.
template <class T>
std::vector<at::Tensor*> tensors_in(T& value) {
  std::vector<at::Tensor*> found;
  TensorVisitor visit(found);
  visit(value);
  return found;
}

}  // namespace gradwire
