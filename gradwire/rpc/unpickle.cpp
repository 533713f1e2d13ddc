#include "gradwire/rpc/unpickle.h"

#include <ATen/ATen.h>

#include "gradwire/base/byte_reader.h"
#include "gradwire/base/pickle.h"
#include "gradwire/rpc/value.h"

namespace gradwire::rpc {
namespace {

template <class T, class Read>
c10::List<T> list_of(
    const std::vector<c10::IValue>& elements, const Read& read) {
  c10::List<T> list;
  list.reserve(elements.size());
  for (const c10::IValue& element : elements) {
    list.push_back(read(element));
  }
  return list;
}

class ValueSink final : public PickleSink {
 public:
  explicit ValueSink(const std::vector<at::Tensor>& tensors)
      : tensors_(tensors) {}

  void none() override {
    stack_.emplace_back();
  }
  void boolean(bool value) override {
    stack_.emplace_back(value);
  }
  void integer(std::int64_t value) override {
    stack_.emplace_back(value);
  }
  void real(double value) override {
    stack_.emplace_back(value);
  }
  void text(std::string_view value) override {
    stack_.emplace_back(std::string(value));
  }
  void tensor(std::size_t number) override {
    stack_.emplace_back(tensors_[number]);
  }
  void empty_map() override {
    stack_.emplace_back(c10::Dict<std::string, std::string>());
  }
  void tuple(std::size_t count) override {
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<c10::IValue> elements(
        std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    stack_.push_back(pack_tuple(std::move(elements)));
  }
  void list(List kind) override {
    const auto elements = elements_of(stack_.back(), "a list");
    using Value = c10::IValue;
    switch (kind) {
      case List::kBools:
        stack_.back() =
            list_of<bool>(elements, [](const Value& v) { return v.toBool(); });
        break;
      case List::kInts:
        stack_.back() = list_of<std::int64_t>(
            elements, [](const Value& v) { return v.toInt(); });
        break;
      case List::kFloats:
        stack_.back() = list_of<double>(
            elements, [](const Value& v) { return v.toDouble(); });
        break;
      case List::kTensors:
        stack_.back() = list_of<at::Tensor>(
            elements, [](const Value& v) { return v.toTensor(); });
        break;
    }
  }
  void drop(std::size_t count) override {
    stack_.resize(stack_.size() - count);
  }
  void save() override {
    saved_.push_back(stack_.back());
  }
  void load(std::size_t saved) override {
    stack_.push_back(saved_[saved]);
  }

  c10::IValue result() {
    return std::move(stack_.front());
  }

 private:
  const std::vector<at::Tensor>& tensors_;
  std::vector<c10::IValue> stack_;
  std::vector<c10::IValue> saved_;
};

// Whether its elements can be counted and all lie in its storage.
bool lies_in_its_storage(const at::Tensor& tensor) {
  std::int64_t count = 1;
  std::int64_t last = tensor.storage_offset();
  bool fits = last >= 0;
  for (std::int64_t i = 0; i < tensor.dim() && fits; ++i) {
    const std::int64_t size = tensor.size(i);
    const std::int64_t stride = tensor.stride(i);
    if (size == 0) {
      return true;
    }
    std::int64_t reach = 0;
    fits = size > 0 && stride >= 0 &&
           !__builtin_mul_overflow(count, size, &count) &&
           !__builtin_mul_overflow(size - 1, stride, &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  const auto elems = tensor.storage().nbytes() / tensor.element_size();
  return fits && static_cast<std::uint64_t>(last) < elems;
}

void check_strided(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.is_cpu() ||
      tensor.is_quantized()) {
    fail(
        "rpc",
        "received a tensor of layout ",
        tensor.layout(),
        " and type ",
        tensor.scalar_type(),
        " on ",
        tensor.device(),
        ", expected a strided or sparse COO one on the cpu");
  }
  if (!lies_in_its_storage(tensor)) {
    fail("rpc", "received a tensor that reaches beyond its bytes");
  }
}

void check_sparse(const at::Tensor& tensor) {
  check_strided(tensor._indices());
  check_strided(tensor._values());
  try {
    at::_validate_sparse_coo_tensor_args(
        tensor._indices(), tensor._values(), tensor.sizes());
  } catch (const c10::Error&) {
    fail("rpc", "received a sparse tensor whose indices do not fit its sizes");
  }
}

}  // namespace

c10::IValue unpickle(
    std::string_view bytes, const std::vector<at::Tensor>& tensors) {
  try {
    ValueSink sink(tensors);
    read_pickle(bytes, tensors.size(), sink);
    return sink.result();
  } catch (const DamagedError& e) {
    fail("rpc", "received something else than plain data: ", e.reason());
  }
}

void check_received(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      tensor.is_sparse() ? check_sparse(tensor) : check_strided(tensor);
    }
  }
}

}  // namespace gradwire::rpc
