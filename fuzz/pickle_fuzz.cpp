// Feeds the reader of pickles with bytes that nobody pickled: it ends in one
// value, or in an error, and asks for nothing that is not there.

#include <string>
#include <vector>

#include "fuzz/input.h"
#include "fuzz/require.h"
#include "gradwire/base/byte_reader.h"
#include "gradwire/base/pickle.h"

namespace gradwire {
namespace {

constexpr std::size_t kTensors = 3;

// Keeps how deep each value is.
class DepthSink final : public PickleSink {
 public:
  void none() override {
    push(0);
  }
  void boolean(bool) override {
    push(0);
  }
  void integer(std::int64_t) override {
    push(0);
  }
  void real(double) override {
    push(0);
  }
  void text(std::string_view value) override {
    length_ += value.size();
    push(0);
  }
  void tensor(std::size_t number) override {
    require(number < kTensors, "a tensor that does not exist");
    push(0);
  }
  void empty_map() override {
    push(0);
  }
  void tuple(std::size_t count) override {
    require(count <= stack_.size(), "a tuple of more values than there are");
    std::size_t depth = 0;
    for (; count > 0; --count) {
      depth = std::max(depth, stack_.back() + 1);
      stack_.pop_back();
    }
    require(depth <= 64, "tuples nested too deep");
    push(depth);
  }
  void list(List) override {
    require(!stack_.empty(), "a list of nothing");
  }
  void drop(std::size_t count) override {
    require(count <= stack_.size(), "more dropped than there is");
    stack_.resize(stack_.size() - count);
  }
  void save() override {
    require(!stack_.empty(), "nothing to save");
    saved_.push_back(stack_.back());
  }
  void load(std::size_t saved) override {
    require(saved < saved_.size(), "something that was not saved");
    push(saved_[saved]);
  }

  std::size_t count() const {
    return stack_.size();
  }
  std::size_t length() const {
    return length_;
  }

 private:
  void push(std::size_t depth) {
    stack_.push_back(depth);
  }

  std::vector<std::size_t> stack_;
  std::vector<std::size_t> saved_;
  std::size_t length_ = 0;
};

// What no fuzzer guesses has a byte of its own, which no opcode has.
std::string expand(const std::vector<std::uint8_t>& bytes) {
  const std::vector<std::string> names{
      "ctorch.jit._pickle\nbuild_tensor_from_id\n",
      "ctorch.jit._pickle\nrestore_type_tag\n",
      "ctorch.jit._pickle\nbuild_boollist\n",
      "ctorch.jit._pickle\nbuild_intlist\n",
      "ctorch.jit._pickle\nbuild_doublelist\n",
      "ctorch.jit._pickle\nbuild_tensorlist\n",
      std::string("X\x0e\0\0\0Dict[str, str]", 19)};
  constexpr std::uint8_t kFirst = 0xf0;
  std::string result;
  for (const std::uint8_t byte : bytes) {
    if (byte >= kFirst && byte < kFirst + names.size()) {
      result += names[byte - kFirst];
    } else {
      result += static_cast<char>(byte);
    }
  }
  return result;
}

void run(const std::string& bytes) {
  DepthSink sink;
  try {
    read_pickle(bytes, kTensors, sink);
    require(sink.count() == 1, "something else than one value");
  } catch (const DamagedError&) {
  }
  require(sink.length() <= bytes.size(), "more text than there are bytes");
}

}  // namespace
}  // namespace gradwire

extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  gradwire::run(bytes);
  gradwire::run("\x80\x02" + gradwire::expand({data, data + size}) + ".");
  return 0;
}
