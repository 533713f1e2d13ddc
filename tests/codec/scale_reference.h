#pragma once

// How the codecs with scales choose them.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace gradwire::codec::test {

// The lowest 8 bits of a step are zero, except for the smallest of floats.
inline bool can_be_step(float v) {
  return std::bit_cast<std::uint32_t>(v) % 256 == 0 || v < 0x1p-133f;
}

// The neighbour of a step, on the side of `to`.
inline float next_step(float step, float to) {
  do {
    step = std::nextafter(step, to);
  } while (!can_be_step(step));
  return step;
}

// The smallest step of which `codes` reach the range.
inline float reaching_step(double range, double codes) {
  float step = static_cast<float>(range / codes);
  while (step * codes < range || !can_be_step(step)) {
    step = std::nextafter(step, std::numeric_limits<float>::infinity());
  }
  return step;
}

// What code 1 stands for in a block around zero; not finite if the block is
// not.
inline float symmetric_step(std::span<const float> block, float codes) {
  float most = 0;
  float least = std::numeric_limits<float>::infinity();
  for (const float v : block) {
    if (std::isnan(v) || std::isnan(most)) {
      most = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    most = std::max(most, std::fabs(v));
    least = std::min(least, std::fabs(v));
  }
  if (!std::isfinite(most) || most == least) {
    return most;
  }
  float step = reaching_step(most, codes);
  while (std::isinf(step * codes)) {
    step = next_step(step, 0.0f);
  }
  return step;
}

// Values are multiplied by it before they are divided by the step, so that the
// step's reciprocal is a normal float.
inline float prescale(float step) {
  if (step == 0) {
    return 1;
  }
  return step < 0x1p-100f ? 0x1p100f : step > 0x1p100f ? 0x1p-100f : 1;
}

}  // namespace gradwire::codec::test
