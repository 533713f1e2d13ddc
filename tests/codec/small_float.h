#pragma once

// Binary floats of few bits, from the definition: a magnitude is a whole number
// of quanta, and the quantum follows from the binade. Doubles hold all of it
// exactly.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace gradwire::codec::test {

struct SmallFloat {
  int mantissa_bits;
  int bias;

  double quantum(double size) const {
    const int least = 1 - bias;
    const int binade = size > 0 ? std::ilogb(size) : least;
    return std::ldexp(1.0, std::max(binade, least) - mantissa_bits);
  }
  // Of a whole number of quanta.
  std::uint32_t code(double size) const {
    const double unit = std::ldexp(1.0, 1 - bias - mantissa_bits);
    const double q = quantum(size);
    const auto steps = static_cast<std::uint32_t>(size / q);
    const auto binade = static_cast<std::uint32_t>(std::ilogb(q / unit));
    return steps + (binade << mantissa_bits);
  }
  double value(std::uint32_t code) const {
    const auto exponent = static_cast<int>(code >> mantissa_bits);
    const std::uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
    const bool normal = exponent > 0;
    const double steps = mantissa + (normal ? 1u << mantissa_bits : 0u);
    const int binade = normal ? exponent : 1;
    return std::ldexp(steps, binade - bias - mantissa_bits);
  }
  // std::nearbyint: half to even.
  double nearest(double size) const {
    const double q = quantum(size);
    return std::nearbyint(size / q) * q;
  }
};

inline std::uint32_t float_bits(float v) {
  return std::bit_cast<std::uint32_t>(v);
}

}  // namespace gradwire::codec::test
