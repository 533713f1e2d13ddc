#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

// The parts streamed into one string.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// "0, 2, 5"
template <class Range>
std::string join(const Range& items, std::string_view separator = ", ") {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) {
      out << separator;
    }
    first = false;
    out << item;
  }
  return out.str();
}

// The candidate with the smallest edit distance to `word`, or "" when none is
// close enough for a typing error.
std::string nearest(
    std::string_view word, const std::vector<std::string>& candidates);

// ", did you mean 'allreduce'?" or "".
std::string did_you_mean(
    std::string_view word, const std::vector<std::string>& candidates);

// The first line: errors of other libraries come with stack traces.
std::string first_line(const std::string& text);

// What the system says of an error number: "No such file or directory".
std::string error_text(int code);

// "12.6 MB": decimal units, as networks are sold.
std::string human_bytes(double bytes);

// 64-bit FNV-1a: a short fingerprint for comparing texts between ranks. Not a
// cryptographic hash.
std::uint64_t fingerprint(std::string_view bytes);

}  // namespace gradwire
