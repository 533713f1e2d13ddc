#pragma once

// For tests that expect the same bits of every processor.

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "gradwire/base/text.h"

namespace gradwire::test {

// Floats of both signs, with exponents from `least` to least + 15 as they are
// stored: 0 stands for subnormal floats, 127 for those from 1 to 2. Made of
// integers, because functions of the C library may differ in the last bit.
inline std::vector<float> golden_floats(
    std::int64_t count, std::uint64_t seed, std::uint32_t least = 118) {
  std::mt19937_64 random(seed);
  std::vector<float> floats(static_cast<std::size_t>(count));
  for (float& value : floats) {
    const std::uint64_t drawn = random();
    const auto low = static_cast<std::uint32_t>(drawn);
    const auto exponent = least + static_cast<std::uint32_t>(drawn >> 60);
    value = std::bit_cast<float>((low & 0x807fffff) | exponent << 23);
  }
  return floats;
}

// The bits of results, as a short text to write down.
class Golden {
 public:
  template <class T>
  void add(std::span<const T> results) {
    bytes_.append(
        reinterpret_cast<const char*>(results.data()), results.size_bytes());
  }
  template <class T>
  void add(const std::vector<T>& results) {
    add(std::span<const T>(results));
  }

  std::string text() const {
    std::ostringstream out;
    out << std::hex << fingerprint(bytes_);
    return out.str();
  }

 private:
  std::string bytes_;
};

}  // namespace gradwire::test
