#pragma once

// Floats of 16 bits with an exponent of all ones for what is not finite: fp16
// and bf16.

#include "tests/codec/reference.h"
#include "tests/codec/small_float.h"

namespace gradwire::codec::test {

class CastReference : public Reference {
 public:
  CastReference(std::uint8_t id, SmallFloat format)
      : Reference(
            {.id = id,
             .variant = 0,
             .code_bits = 16,
             .scale_floats = 0,
             .block = 512}),
        format_(format),
        infinity_((0x7fffu >> format.mantissa_bits) << format.mantissa_bits) {}

  Scale measure(std::span<const float>) const override {
    return {};
  }
  std::uint32_t put(float v, Scale, std::uint32_t) const override {
    const std::uint32_t sign = float_bits(v) >> 31 << 15;
    if (std::isnan(v)) {
      const std::uint32_t payload = float_bits(v) & 0x7fffff;
      const std::uint32_t quiet = 1u << (format_.mantissa_bits - 1);
      return sign | infinity_ | quiet | payload >> (23 - format_.mantissa_bits);
    }
    if (std::isinf(v)) {
      return sign | infinity_;
    }
    const double size = format_.nearest(std::fabs(static_cast<double>(v)));
    return sign | std::min(format_.code(size), infinity_);
  }
  float get(std::uint32_t code, Scale) const override {
    const std::uint32_t size = code & 0x7fff;
    float v = static_cast<float>(format_.value(size));
    if (size >= infinity_) {
      v = size == infinity_ ? INFINITY : NAN;
    }
    return code >> 15 != 0 ? -v : v;
  }

 private:
  SmallFloat format_;
  std::uint32_t infinity_;
};

}  // namespace gradwire::codec::test
