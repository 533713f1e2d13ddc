#pragma once

// int8 and int4.

#include "tests/codec/reference.h"
#include "tests/codec/scale_reference.h"

namespace gradwire::codec::test {

struct IntegerOptions {
  int bits = 8;
  std::int64_t block = 512;
  bool affine = false;
  bool stochastic = false;
};

class IntegerReference : public Reference {
 public:
  explicit IntegerReference(IntegerOptions options)
      : Reference(
            {.id = static_cast<std::uint8_t>(options.bits),
             .variant = options.affine,
             .code_bits = options.bits,
             .scale_floats = options.affine ? 2 : 1,
             .block = options.block}),
        options_(options),
        most_(static_cast<float>(
            options.affine ? (1 << options.bits) - 1
                           : (1 << (options.bits - 1)) - 1)),
        least_(options.affine ? 0 : -most_) {}

  Scale measure(std::span<const float> block) const override {
    if (!options_.affine) {
      return {symmetric_step(block, most_)};
    }
    if (block.empty()) {
      return {};
    }
    float low = block[0];
    float high = block[0];
    for (const float v : block) {
      if (!std::isfinite(v)) {
        return {std::numeric_limits<float>::quiet_NaN(), 0};
      }
      low = std::min(low, v);
      high = std::max(high, v);
    }
    low += 0.0f;  // no -0, which may be the smallest of zeros, or the largest
    high += 0.0f;
    float step = reaching_step(static_cast<double>(high) - low, most_);
    while (std::isinf(affine_value(most_, low, step))) {
      step = next_step(step, 0.0f);
    }
    return {low, step};
  }

  std::uint32_t put(float v, Scale scale, std::uint32_t noise) const override {
    const float step = options_.affine ? scale[1] : scale[0];
    const float base = options_.affine ? scale[0] : 0;
    const float by = prescale(step);
    const float reciprocal = step > 0 ? 1 / (step * by) : 0;
    const float scaled = (v * by - base * by) * reciprocal;
    const float rounded = options_.stochastic
                              ? std::floor(scaled + noise_uniform(noise))
                              : std::nearbyint(scaled);
    const auto code =
        static_cast<std::int32_t>(std::clamp(rounded, least_, most_));
    return static_cast<std::uint32_t>(code + offset()) & mask();
  }

  float get(std::uint32_t code, Scale scale) const override {
    if (options_.affine) {
      return affine_value(static_cast<float>(code), scale[0], scale[1]);
    }
    auto number = static_cast<std::int32_t>(code) - offset();
    if (options_.bits == 8) {
      number = static_cast<std::int8_t>(code);
    }
    return static_cast<float>(number) * scale[0];
  }

 private:
  // 8 bits have a sign of their own, 4 bits are counted from -8.
  std::int32_t offset() const {
    return options_.affine || options_.bits == 8 ? 0 : 8;
  }
  std::uint32_t mask() const {
    return (1u << options_.bits) - 1;
  }
  // A range may be twice the largest float.
  static float affine_value(float code, float low, float step) {
    const float by = std::min(prescale(step), 1.0f);
    return (code * (step * by) + low * by) / by;
  }

  IntegerOptions options_;
  float most_;
  float least_;
};

}  // namespace gradwire::codec::test
