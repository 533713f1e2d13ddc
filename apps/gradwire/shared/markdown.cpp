#include "apps/gradwire/shared/markdown.h"

#include "gradwire/base/text.h"

namespace gradwire::apps {

MarkdownTable::MarkdownTable(const std::vector<std::string>& titles) {
  add(titles);
  text_ += "|";
  for (std::size_t i = 0; i < titles.size(); ++i) {
    text_ += "---|";
  }
  text_ += "\n";
}

void MarkdownTable::add(const std::vector<std::string>& cells) {
  text_ += concat("| ", join(cells, " | "), " |\n");
}

std::string code(const std::string& text) {
  return text.empty() ? "" : concat('`', text, '`');
}

}  // namespace gradwire::apps
