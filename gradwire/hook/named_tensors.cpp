#include "gradwire/hook/named_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

// Elements are written as they lie in memory.
static_assert(std::endian::native == std::endian::little);

namespace gradwire {
namespace {

constexpr std::size_t kMostDimensions = 64;

// The types that are known, by their names in files.
struct TypeName {
  std::string_view name;
  at::ScalarType type;
};
constexpr std::array<TypeName, 12> kTypeNames{{
    {"float32", at::kFloat},
    {"float64", at::kDouble},
    {"float16", at::kHalf},
    {"bfloat16", at::kBFloat16},
    {"complex64", at::kComplexFloat},
    {"complex128", at::kComplexDouble},
    {"int64", at::kLong},
    {"int32", at::kInt},
    {"int16", at::kShort},
    {"int8", at::kChar},
    {"uint8", at::kByte},
    {"bool", at::kBool},
}};

std::string_view name_of(const std::string& tensor, at::ScalarType type) {
  const auto found = std::ranges::find(kTypeNames, type, &TypeName::type);
  if (found == kTypeNames.end()) {
    fail("hook", "tensor '", tensor, "' cannot be saved: it is of ", type);
  }
  return found->name;
}

at::ScalarType type_of(std::string_view name) {
  const auto found = std::ranges::find(kTypeNames, name, &TypeName::name);
  if (found == kTypeNames.end()) {
    throw DamagedError("a tensor is of an unknown type");
  }
  return found->type;
}

// The bytes that elements of these sizes have.
std::uint64_t bytes_of(
    const std::vector<std::int64_t>& sizes, std::size_t elem_bytes) {
  std::uint64_t bytes = elem_bytes;
  bool empty = false;
  for (const std::int64_t size : sizes) {
    empty = empty || size == 0;
    if (size < 0 ||
        __builtin_mul_overflow(
            bytes,
            std::max<std::uint64_t>(static_cast<std::uint64_t>(size), 1),
            &bytes) ||
        bytes > std::numeric_limits<std::int64_t>::max()) {
      throw DamagedError("a tensor has impossible sizes");
    }
  }
  return empty ? 0 : bytes;
}

at::Tensor read_tensor(ByteReader& in) {
  const at::ScalarType type = type_of(in.text());
  std::vector<std::int64_t> sizes(in.count(sizeof(std::int64_t)));
  if (sizes.size() > kMostDimensions) {
    throw DamagedError("a tensor has too many dimensions");
  }
  for (std::int64_t& size : sizes) {
    size = in.number();
  }
  const std::string_view bytes = in.text();
  if (bytes.size() != bytes_of(sizes, c10::elementSize(type))) {
    throw DamagedError("a tensor has other sizes than its bytes");
  }
  if (type == at::kBool &&
      std::ranges::any_of(bytes, [](char byte) { return byte & ~1; })) {
    throw DamagedError("a bool is neither true nor false");
  }
  at::Tensor tensor = at::empty(sizes, type);
  if (!bytes.empty()) {
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  return tensor;
}

}  // namespace

void write_tensors(ArchiveWriter& out, const NamedTensors& tensors) {
  out.number(static_cast<std::int64_t>(tensors.size()));
  for (const auto& [name, value] : tensors) {
    const at::Tensor tensor =
        value.detach().cpu().resolve_conj().resolve_neg().contiguous();
    out.text(name);
    out.text(name_of(name, tensor.scalar_type()));
    out.number(tensor.dim());
    for (const std::int64_t size : tensor.sizes()) {
      out.number(size);
    }
    out.number(static_cast<std::int64_t>(tensor.nbytes()));
    out.raw(tensor.const_data_ptr(), tensor.nbytes());
  }
}

NamedTensors read_tensors(ByteReader& in) {
  // Of a name, a type, a number of sizes and a number of bytes.
  constexpr std::size_t kLeast = 4 * sizeof(std::int64_t);
  NamedTensors tensors;
  for (auto left = in.count(kLeast); left > 0; --left) {
    const std::string name(in.text());
    if (!tensors.emplace(name, read_tensor(in)).second) {
      throw DamagedError(concat("'", name, "' is there twice"));
    }
  }
  return tensors;
}

}  // namespace gradwire
