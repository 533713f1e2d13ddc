#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// A reader of pickles, the way in which Torch writes the values of a message,
// for plain data only: it knows no class and calls nothing.
namespace gradwire {

// Gets the values of a pickle, innermost first, and keeps them on a stack.
class PickleSink {
 public:
  enum class List { kBools, kInts, kFloats, kTensors };

  virtual ~PickleSink() = default;

  virtual void none() = 0;
  virtual void boolean(bool value) = 0;
  virtual void integer(std::int64_t value) = 0;
  virtual void real(double value) = 0;
  virtual void text(std::string_view value) = 0;
  // The tensor of this number, of those that travel beside the pickle.
  virtual void tensor(std::size_t number) = 0;
  // A map without any entry: autograd sends one along.
  virtual void empty_map() = 0;
  // The last `count` values become a tuple.
  virtual void tuple(std::size_t count) = 0;
  // The last value, a tuple with elements of one kind, becomes a list.
  virtual void list(List kind) = 0;
  virtual void drop(std::size_t count) = 0;
  // The last value is wanted again: load() puts the n-th one that was saved,
  // counted from 0, on the stack.
  virtual void save() = 0;
  virtual void load(std::size_t saved) = 0;
};

// Reads a pickle with `tensors` tensors beside it. At the end the stack holds
// one value. Throws DamagedError for bytes that are no pickle, a class or a
// function by name, tuples nested more than 64 deep, and values that unfold to
// more than 256 MiB and 16 times the bytes, because parts are shared.
void read_pickle(std::string_view bytes, std::size_t tensors, PickleSink& sink);

}  // namespace gradwire
