#include "gradwire/base/spec.h"

#include <cctype>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

// Recursive descent over: spec = name [ "(" spec ")" ] [ ":" option { ","
// option } ], option = key "=" value. Blanks around tokens are allowed.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Spec parse() {
    Spec spec = parse_one();
    skip_blanks();
    if (at_ < text_.size()) {
      reject(
          text_[at_] == ')' ? "unbalanced ')'"
                            : concat("unexpected '", text_[at_], "'"));
    }
    return spec;
  }

 private:
  Spec parse_one() {
    Spec spec;
    spec.name = word("a name");
    if (take('(')) {
      spec.inner = std::make_shared<const Spec>(parse_one());
      if (!take(')')) {
        reject("unbalanced '(': expected ')'");
      }
    }
    if (take(':')) {
      do {
        parse_option(spec);
      } while (take(','));
    }
    return spec;
  }

  void parse_option(Spec& spec) {
    const std::string key = word("an option name");
    if (!take('=')) {
      reject(concat("expected '=' and a value after option '", key, "'"));
    }
    const std::string value = word(concat("a value for option '", key, "'"));
    if (!spec.options.emplace(key, value).second) {
      reject(concat("option '", key, "' is given twice"));
    }
  }

  std::string word(const std::string& expected) {
    skip_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) {
      ++at_;
    }
    if (begin == at_) {
      reject(concat("expected ", expected));
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  bool take(char wanted) {
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == wanted) {
      ++at_;
      return true;
    }
    return false;
  }

  void skip_blanks() {
    while (at_ < text_.size() &&
           std::isspace(static_cast<unsigned char>(text_[at_]))) {
      ++at_;
    }
  }

  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' ||
           c == '-' || c == '+' || c == '.' || c == '/';
  }

  [[noreturn]] void reject(const std::string& why) const {
    fail("hook", "spec '", text_, "': ", why, " at position ", at_ + 1);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Spec parse_spec(std::string_view text) {
  return Parser(text).parse();
}

std::string to_string(const Spec& spec) {
  std::string text = spec.name;
  if (spec.inner) {
    text += concat('(', to_string(*spec.inner), ')');
  }
  char separator = ':';
  for (const auto& [key, value] : spec.options) {
    text += concat(separator, key, '=', value);
    separator = ',';
  }
  return text;
}

}  // namespace gradwire
