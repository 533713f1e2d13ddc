#include "gradwire/rpc/value.h"

#include <ATen/ATen.h>

#include <cstring>

#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

constexpr std::size_t kSmallBytes = 4096;

// Types whose elements are plain bytes.
bool is_plain(at::ScalarType type) {
  switch (type) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
    case at::kBool:
      return true;
    default:
      return false;
  }
}

bool travels_as_bytes(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() &&
         !tensor.requires_grad() && is_plain(tensor.scalar_type()) &&
         tensor.is_contiguous() && !tensor.is_neg() &&
         !tensor._is_zerotensor() && tensor.numel() > 0 &&
         tensor.nbytes() <= kSmallBytes;
}

// The number of elements, or nothing for sizes that a small tensor cannot have.
std::optional<std::size_t> count_of(const std::vector<std::int64_t>& sizes) {
  std::size_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size < 1 || size > static_cast<std::int64_t>(kSmallBytes)) {
      return std::nullopt;
    }
    count *= static_cast<std::size_t>(size);
    if (count > kSmallBytes) {
      return std::nullopt;
    }
  }
  return count;
}

at::Tensor tensor_of_bytes(const c10::IValue& packed) {
  const auto parts = elements_of(packed, "Tensor", 3);
  const auto number = Wire<int>::unpack(parts[0]);
  const auto sizes = Wire<std::vector<std::int64_t>>::unpack(parts[1]);
  const std::string bytes = Wire<std::string>::unpack(parts[2]);
  const auto type = static_cast<at::ScalarType>(number);
  const auto count = count_of(sizes);
  if (number < 0 || number >= static_cast<int>(at::ScalarType::NumOptions) ||
      !is_plain(type) || !count ||
      *count * c10::elementSize(type) != bytes.size()) {
    fail("rpc", "received bytes that are no tensor of their type and shape");
  }
  at::Tensor tensor = at::empty(sizes, type);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

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
  if (tensor.is_quantized()) {
    fail("rpc", "a quantized tensor cannot be sent: call dequantize() before");
  }
  if (!tensor.is_cpu()) {
    fail(
        "rpc",
        "a tensor on ",
        tensor.device(),
        " cannot be sent, expected one on the cpu: call cpu() before");
  }
}

}  // namespace

c10::IValue pack_tensor(const at::Tensor& tensor) {
  check_sendable(tensor);
  if (!travels_as_bytes(tensor)) {
    return tensor;
  }
  std::string bytes(
      static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  return pack_tuple(
      {static_cast<std::int64_t>(tensor.scalar_type()),
       Wire<std::vector<std::int64_t>>::pack(tensor.sizes().vec()),
       std::move(bytes)});
}

at::Tensor unpack_tensor(const c10::IValue& packed) {
  if (packed.isTensor()) {
    return packed.toTensor();
  }
  return tensor_of_bytes(packed);
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
  return elements.vec();
}

c10::IValue pack_tuple(std::vector<c10::IValue> elements) {
  return c10::ivalue::Tuple::create(std::move(elements));
}

}  // namespace gradwire::rpc
