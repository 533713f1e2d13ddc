#pragma once

#include <string>
#include <vector>

namespace gradwire::apps {

// A table as the pages of docs/ have it.
class MarkdownTable {
 public:
  explicit MarkdownTable(const std::vector<std::string>& titles);

  void add(const std::vector<std::string>& cells);

  const std::string& text() const {
    return text_;
  }

 private:
  std::string text_;
};

// "`text`", and nothing for nothing.
std::string code(const std::string& text);

}  // namespace gradwire::apps
