#include "apps/gradwire/bench/lists.h"

#include <algorithm>
#include <charconv>

#include "gradwire/base/error.h"

namespace gradwire::apps {
namespace {

constexpr double kSlowest = 1e6;
constexpr double kFastest = 100e9;

std::string_view trim(std::string_view text) {
  constexpr auto kBlanks = " \t";
  const auto begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Whether `text`, what follows a comma, begins with another option.
bool begins_with_option(std::string_view text) {
  const auto stop = text.find_first_of("=:(),");
  return stop != std::string_view::npos && text[stop] == '=';
}

Link parse_link(std::string_view text) {
  if (text == "loopback") {
    return {"loopback", 0};
  }
  double value = 0;
  const auto [stop, code] = std::from_chars(
      text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const std::string_view unit =
      text.substr(static_cast<std::size_t>(stop - text.data()));
  const double scale = unit == "kbit"   ? 1e3
                       : unit == "mbit" ? 1e6
                       : unit == "gbit" ? 1e9
                                        : 0;
  const double rate = value * scale;
  if (code != std::errc() || !(rate >= kSlowest && rate <= kFastest)) {
    fail(
        "app",
        "--link '",
        text,
        "' is no rate, expected 1mbit to 100gbit such as 100mbit or 2.5gbit, "
        "or loopback");
  }
  return {std::string(text), rate};
}

}  // namespace

long Link::burst_bytes() const {
  constexpr double kBurstMs = 2;
  constexpr long kLeast = 64 * 1024;
  return std::max(kLeast, static_cast<long>(bytes_per_ms() * kBurstMs));
}

std::vector<std::string> split_specs(std::string_view list) {
  std::vector<std::string> specs;
  int open = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    open += c == '(' ? 1 : c == ')' ? -1 : 0;
    const bool at_end = i == list.size();
    if (c != ',' ||
        (!at_end && (open > 0 || begins_with_option(list.substr(i + 1))))) {
      continue;
    }
    const auto spec = trim(list.substr(begin, i - begin));
    if (spec.empty()) {
      fail("app", "--hooks '", list, "' has an empty entry, expected a hook");
    }
    specs.emplace_back(spec);
    begin = i + 1;
  }
  return specs;
}

std::vector<Link> parse_links(const std::vector<std::string>& values) {
  std::vector<Link> links;
  for (const std::string_view value : values) {
    for (std::size_t begin = 0; begin <= value.size();) {
      const auto end = std::min(value.find(',', begin), value.size());
      links.push_back(parse_link(trim(value.substr(begin, end - begin))));
      begin = end + 1;
    }
  }
  for (const auto& link : links) {
    if (std::ranges::count(links, link.name, &Link::name) > 1) {
      fail("app", "--link ", link.name, " is given twice, expected once");
    }
  }
  if (links.empty()) {
    links.push_back({"loopback", 0});
  }
  return links;
}

}  // namespace gradwire::apps
