#pragma once

#include <string>
#include <vector>

#include "gradwire/base/pickle.h"
#include "gradwire/base/text.h"

namespace gradwire::test {

// Writes values as text: "(1, 'a', tensor 0)".
class TextSink : public PickleSink {
 public:
  void none() override {
    stack_.emplace_back("none");
  }
  void boolean(bool value) override {
    stack_.emplace_back(value ? "true" : "false");
  }
  void integer(std::int64_t value) override {
    stack_.push_back(concat(value));
  }
  void real(double value) override {
    stack_.push_back(concat(value));
  }
  void text(std::string_view value) override {
    stack_.push_back(concat("'", value, "'"));
  }
  void tensor(std::size_t number) override {
    stack_.push_back(concat("tensor ", number));
  }
  void empty_map() override {
    stack_.emplace_back("map");
  }
  void tuple(std::size_t count) override {
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    const auto text =
        concat("(", join(std::vector<std::string>(first, stack_.end())), ")");
    stack_.erase(first, stack_.end());
    stack_.push_back(text);
  }
  void list(List kind) override {
    const std::vector<const char*> names{
        "bools ", "ints ", "floats ", "tensors "};
    stack_.back() = names.at(static_cast<std::size_t>(kind)) + stack_.back();
  }
  void drop(std::size_t count) override {
    stack_.resize(stack_.size() - count);
  }
  void save() override {
    saved_.push_back(stack_.back());
  }
  void load(std::size_t saved) override {
    stack_.push_back(saved_.at(saved));
  }

  const std::vector<std::string>& stack() const {
    return stack_;
  }

 private:
  std::vector<std::string> stack_;
  std::vector<std::string> saved_;
};

inline std::string text_of_pickle(
    const std::string& bytes, std::size_t tensors = 0) {
  TextSink sink;
  read_pickle(bytes, tensors, sink);
  return join(sink.stack());
}

}  // namespace gradwire::test
