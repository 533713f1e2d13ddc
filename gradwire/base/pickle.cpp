#include "gradwire/base/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "gradwire/base/byte_reader.h"

namespace gradwire {
namespace {

constexpr std::size_t kMostDepth = 64;
constexpr std::size_t kMostShared = std::size_t{1} << 28;
// What one value takes in memory, whatever it is; a text takes its characters
// as well. The shortest value takes one byte of a pickle.
constexpr std::size_t kValueBytes = 16;
// The only type that autograd's messages name.
constexpr std::string_view kMapType = "Dict[str, str]";

// The opcodes of protocol 2 that Torch writes for plain data.
enum Op : std::uint8_t {
  kOpMark = '(',
  kOpEmptyTuple = ')',
  kOpStop = '.',
  kOpFloat = 'G',
  kOpInt4 = 'J',
  kOpInt1 = 'K',
  kOpInt2 = 'M',
  kOpNone = 'N',
  kOpReduce = 'R',
  kOpText = 'X',
  kOpEmptyList = ']',
  kOpGlobal = 'c',
  kOpAppends = 'e',
  kOpGet1 = 'h',
  kOpGet4 = 'j',
  kOpPut1 = 'q',
  kOpPut4 = 'r',
  kOpTuple = 't',
  kOpSetItems = 'u',
  kOpEmptyMap = '}',
  kOpProtocol = 0x80,
  kOpTuple1 = 0x85,
  kOpTuple2 = 0x86,
  kOpTuple3 = 0x87,
  kOpTrue = 0x88,
  kOpFalse = 0x89,
  kOpInt8 = 0x8a,
};

// What is on the reader's stack. The last three are no values yet.
enum class Kind : std::uint8_t {
  kBool,
  kInt,
  kFloat,
  kTensor,
  kMapType,
  kEmptyMap,
  kOther,
  kName,
  kOpenList,
  kElements,
};

// What a pickle may apply to its values, by the name that Torch gives it.
struct Callable {
  std::string_view name;
  // Of the list that it makes.
  PickleSink::List list = {};
  Kind element = Kind::kOther;
};
constexpr std::array<Callable, 6> kCallables{{
    {"build_tensor_from_id"},
    {"restore_type_tag"},
    {"build_boollist", PickleSink::List::kBools, Kind::kBool},
    {"build_intlist", PickleSink::List::kInts, Kind::kInt},
    {"build_doublelist", PickleSink::List::kFloats, Kind::kFloat},
    {"build_tensorlist", PickleSink::List::kTensors, Kind::kTensor},
}};
constexpr std::size_t kTensorFromNumber = 0;
constexpr std::size_t kRestoreType = 1;

struct Item {
  Kind kind = Kind::kOther;
  // Of the elements of a list, when they are of one kind.
  Kind element = Kind::kOther;
  std::uint8_t depth = 0;
  // The bytes it unfolds to when shared parts are counted every time.
  std::size_t size = kValueBytes;
  // An int; which callable.
  std::int64_t number = 0;
};

struct Saved {
  Item item;
  std::size_t number = 0;
};

[[noreturn]] void refuse_pickle(const std::string& reason) {
  throw DamagedError(reason);
}

class PickleReader {
 public:
  PickleReader(std::string_view bytes, std::size_t tensors, PickleSink& sink)
      : in_(bytes),
        tensors_(tensors),
        most_size_(kMostShared + kValueBytes * bytes.size()),
        sink_(sink) {}

  void read() {
    if (op() != kOpProtocol || in_.number(1) != 2) {
      refuse_pickle("they are no pickle of protocol 2");
    }
    for (std::uint8_t code = op(); code != kOpStop; code = op()) {
      run(code);
    }
    in_.end();
    if (stack_.size() != 1 || !marks_.empty() || !is_value(stack_.front())) {
      refuse_pickle("a pickle ends in the middle of a value");
    }
  }

 private:
  static bool is_value(const Item& item) {
    return item.kind < Kind::kName;
  }

  std::uint8_t op() {
    return static_cast<std::uint8_t>(in_.number(1));
  }

  void run(std::uint8_t code) {
    switch (code) {
      case kOpMark:
        marks_.push_back(stack_.size());
        return;
      case kOpNone:
        sink_.none();
        return push({});
      case kOpTrue:
      case kOpFalse:
        sink_.boolean(code == kOpTrue);
        return push({.kind = Kind::kBool});
      case kOpInt1:
      case kOpInt2:
        return push_int(
            static_cast<std::int64_t>(in_.number(code == kOpInt1 ? 1 : 2)));
      case kOpInt4:
        return push_int(static_cast<std::int32_t>(in_.number(4)));
      case kOpInt8:
        return push_long();
      case kOpFloat:
        return push_float();
      case kOpText:
        return push_text();
      case kOpEmptyMap:
        sink_.empty_map();
        return push({.kind = Kind::kEmptyMap});
      case kOpSetItems:
        return set_items();
      case kOpEmptyTuple:
        return push_tuple(stack_.size());
      case kOpTuple1:
      case kOpTuple2:
      case kOpTuple3:
        return push_tuple(first_of(code - kOpTuple1 + std::size_t{1}));
      case kOpTuple:
        return push_tuple(pop_mark());
      case kOpEmptyList:
        return push({.kind = Kind::kOpenList});
      case kOpAppends:
        return append_all();
      case kOpGlobal:
        return push_name();
      case kOpPut1:
      case kOpPut4:
        return put(in_.number(code == kOpPut1 ? 1 : 4));
      case kOpGet1:
      case kOpGet4:
        return get(in_.number(code == kOpGet1 ? 1 : 4));
      default:
        refuse_pickle(concat("a pickle has the opcode ", int{code}));
    }
  }

  // Where the last `count` items begin.
  std::size_t first_of(std::size_t count) const {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) {
      refuse_pickle("a pickle takes more values than there are");
    }
    return stack_.size() - count;
  }

  std::size_t pop_mark() {
    if (marks_.empty()) {
      refuse_pickle("a pickle ends something that did not begin");
    }
    const std::size_t start = marks_.back();
    marks_.pop_back();
    return start;
  }

  void push(const Item& item) {
    stack_.push_back(item);
  }

  void push_int(std::int64_t value) {
    sink_.integer(value);
    push({.kind = Kind::kInt, .number = value});
  }

  void push_long() {
    if (in_.number(1) != sizeof(std::int64_t)) {
      refuse_pickle("a number does not have 64 bits");
    }
    push_int(in_.number());
  }

  void push_float() {
    std::uint64_t bits = 0;  // the most significant byte first
    for (const char byte : in_.raw(sizeof(double))) {
      bits = bits << 8 | static_cast<std::uint8_t>(byte);
    }
    sink_.real(std::bit_cast<double>(bits));
    push({.kind = Kind::kFloat});
  }

  void push_text() {
    const std::string_view text = in_.raw(in_.number(4));
    sink_.text(text);
    push(
        {.kind = text == kMapType ? Kind::kMapType : Kind::kOther,
         .size = kValueBytes + text.size()});
  }

  // A map may only be empty.
  void set_items() {
    const std::size_t start = pop_mark();
    if (start != stack_.size() || start == 0 ||
        stack_.back().kind != Kind::kEmptyMap) {
      refuse_pickle("a pickle has a map with entries");
    }
  }

  // One item for those from `start` on.
  Item joined(std::size_t start, Kind kind) const {
    Item whole{.kind = kind};
    for (std::size_t i = start; i < stack_.size(); ++i) {
      const Item& item = stack_[i];
      if (!is_value(item)) {
        refuse_pickle("a pickle has a name or a list where a value belongs");
      }
      const bool same = i == start || item.kind == whole.element;
      whole.element = same ? item.kind : Kind::kOther;
      whole.depth = std::max<std::uint8_t>(whole.depth, item.depth + 1);
      whole.size += item.size;
      if (whole.size > most_size_) {
        refuse_pickle(
            concat("a pickle unfolds to more than ", most_size_, " bytes"));
      }
    }
    if (whole.depth > kMostDepth) {
      refuse_pickle(
          concat("values are nested more than ", kMostDepth, " deep"));
    }
    return whole;
  }

  void push_joined(std::size_t start, Kind kind) {
    const Item whole = joined(start, kind);
    sink_.tuple(stack_.size() - start);
    stack_.resize(start);
    push(whole);
  }

  void push_tuple(std::size_t start) {
    if (start > 0 && stack_[start - 1].kind == Kind::kName) {
      return apply(start);
    }
    push_joined(start, Kind::kOther);
  }

  void append_all() {
    const std::size_t start = pop_mark();
    if (start == 0 || stack_[start - 1].kind != Kind::kOpenList) {
      refuse_pickle("a pickle appends to what is no list");
    }
    push_joined(start, Kind::kElements);
    stack_.erase(stack_.end() - 2);
  }

  void push_name() {
    const std::string_view module = in_.line();
    const std::string_view name = in_.line();
    const auto found = std::ranges::find(kCallables, name, &Callable::name);
    if (module != "torch.jit._pickle" || found == kCallables.end()) {
      refuse_pickle("a pickle names a class or a function");
    }
    push({.kind = Kind::kName, .number = found - kCallables.begin()});
  }

  // Applies the name before `start` to the items from there on.
  void apply(std::size_t start) {
    if (op() != kOpReduce) {
      refuse_pickle("a pickle does not use what it names");
    }
    const auto which = static_cast<std::size_t>(stack_[start - 1].number);
    const std::size_t count = stack_.size() - start;
    const Item first = count > 0 ? stack_[start] : Item{};
    if (which == kTensorFromNumber && count == 1 && first.kind == Kind::kInt) {
      stack_.resize(start - 1);
      return push_tensor(first.number);
    }
    if (which == kRestoreType && count == 2 && first.kind == Kind::kEmptyMap &&
        stack_.back().kind == Kind::kMapType) {
      sink_.drop(1);
      stack_.resize(start - 1);
      return push(first);
    }
    const Callable& callable = kCallables[which];
    if (callable.element != Kind::kOther && count == 1 &&
        first.kind == Kind::kElements &&
        (first.size == kValueBytes || first.element == callable.element)) {
      sink_.list(callable.list);
      stack_.resize(start - 1);
      return push({.depth = first.depth, .size = first.size});
    }
    refuse_pickle(concat("a pickle misuses ", callable.name));
  }

  void push_tensor(std::int64_t number) {
    if (number < 0 || static_cast<std::uint64_t>(number) >= tensors_) {
      refuse_pickle(concat(
          "a pickle refers to tensor ", number, ", but there are ", tensors_));
    }
    sink_.drop(1);
    sink_.tensor(static_cast<std::size_t>(number));
    push({.kind = Kind::kTensor});
  }

  // Torch numbers what it saves from 0 on.
  void put(std::uint64_t number) {
    if (number != memo_.size() || stack_.empty() ||
        (!is_value(stack_.back()) && stack_.back().kind != Kind::kName)) {
      refuse_pickle("a pickle saves what it cannot");
    }
    if (is_value(stack_.back())) {
      sink_.save();
      memo_.push_back({stack_.back(), saved_++});
    } else {
      memo_.push_back({stack_.back()});
    }
  }

  void get(std::uint64_t number) {
    if (number >= memo_.size()) {
      refuse_pickle("a pickle fetches what it did not save");
    }
    const Saved& saved = memo_[number];
    if (is_value(saved.item)) {
      sink_.load(saved.number);
    }
    push(saved.item);
  }

  ByteReader in_;
  std::size_t tensors_;
  std::size_t most_size_;
  PickleSink& sink_;
  std::vector<Item> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Saved> memo_;
  // How many values of the memo the sink has.
  std::size_t saved_ = 0;
};

}  // namespace

void read_pickle(
    std::string_view bytes, std::size_t tensors, PickleSink& sink) {
  PickleReader(bytes, tensors, sink).read();
}

}  // namespace gradwire
