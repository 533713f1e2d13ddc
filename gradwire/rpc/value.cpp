#include "gradwire/rpc/value.h"

#include "gradwire/base/error.h"

namespace gradwire::rpc {

void check_sendable(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    fail(
        "rpc",
        "an undefined tensor cannot be sent: pass an optional<Tensor> without "
        "a value");
  }
  if (tensor.layout() != at::kStrided && tensor.layout() != at::kSparse) {
    fail(
        "rpc",
        "a tensor of layout ",
        tensor.layout(),
        " cannot be sent, expected strided or sparse COO: convert it with "
        "to_sparse() or to_dense()");
  }
}

void refuse_number(std::uint64_t value) {
  fail("rpc", value, " cannot be sent, expected a number below 2^63");
}

void refuse_value(const c10::IValue& got, const std::string& expected) {
  fail(
      "rpc",
      "received a value of kind ",
      got.tagKind(),
      ", expected ",
      expected);
}

std::vector<c10::IValue> elements_of(
    const c10::IValue& packed,
    const std::string& expected,
    std::optional<std::size_t> length) {
  if (!packed.isTuple()) {
    refuse_value(packed, expected);
  }
  const auto& elements = packed.toTupleRef().elements();
  if (length && elements.size() != *length) {
    fail(
        "rpc",
        "received ",
        elements.size(),
        " elements, expected ",
        *length,
        " of ",
        expected);
  }
  return std::vector<c10::IValue>(elements.begin(), elements.end());
}

c10::IValue pack_tuple(std::vector<c10::IValue> elements) {
  return c10::ivalue::Tuple::create(std::move(elements));
}

}  // namespace gradwire::rpc
