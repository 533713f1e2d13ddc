#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace gradwire {

// A hook or codec as a user writes it: `name`, `name:key=value,key=value`, or a
// wrapper around another one, `bf16(powersgd:rank=2)`, `wrap(inner):key=1`.
// Only the form is known here; registries know what the names mean.
struct Spec {
  std::string name;
  std::map<std::string, std::string> options;
  std::shared_ptr<const Spec> inner;
};

// Throws Error that points at the offending character.
Spec parse_spec(std::string_view text);

// The canonical text: options sorted by key, no blanks. Equal specs have equal
// texts, which is what ranks compare.
std::string to_string(const Spec& spec);

}  // namespace gradwire
