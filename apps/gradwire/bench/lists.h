#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradwire::apps {

// What ranks are connected by.
struct Link {
  // As the user wrote it: "1gbit", "loopback".
  std::string name;
  // 0: loopback, not shaped.
  double bits_per_second = 0;

  bool shaped() const {
    return bits_per_second > 0;
  }
  double bytes_per_ms() const {
    return bits_per_second / 8e3;
  }
  // What may pass at once before the rate holds: 2 ms worth, and never less
  // than one packet as the kernel hands it down, 64 KiB.
  long burst_bytes() const;
};

// "none,int8:block=256,ef=off,bf16(int8)" as three specs: a comma separates
// specs unless `key=` follows or a parenthesis is open. Blanks around specs
// are dropped. Throws Error for an empty entry.
std::vector<std::string> split_specs(std::string_view list);

// Links from values such as "1gbit,100mbit" and "loopback". Nothing given:
// loopback. Throws Error that names the bad entry and what would be right.
std::vector<Link> parse_links(const std::vector<std::string>& values);

}  // namespace gradwire::apps
