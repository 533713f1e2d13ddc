#pragma once

// What int8 and int4 are tested for.

#include "tests/codec/against_reference.h"
#include "tests/codec/integer_reference.h"

namespace gradwire::codec::test {

inline std::string integer_codec(int bits) {
  return "int" + std::to_string(bits);
}

inline void check_integers(
    const std::string& options, const IntegerOptions& expected) {
  check_all_blocks(
      integer_codec(expected.bits), options, [&](std::int64_t block) {
        IntegerOptions with_block = expected;
        with_block.block = block;
        return IntegerReference(with_block);
      });
}

inline void check_half_a_step_at_most(int bits) {
  for (const bool affine : {false, true}) {
    SCOPED_TRACE(affine ? "affine" : "symmetric");
    const Codec codec = make_codec(
        integer_codec(bits) +
        (affine ? ":scheme=affine" : ":scheme=symmetric"));
    const Floats values = make_values(Kind::kNormal, 512, 5);
    const auto [low, high] = std::ranges::minmax(values);
    const float range = affine ? high - low : 2 * std::max(-low, high);
    const float step =
        range / static_cast<float>((1 << bits) - (affine ? 1 : 2));
    const Segments segments = make_segments({512});
    const Floats decoded =
        decode(codec, segments, encode(codec, segments, values));
    float worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      worst = std::max(worst, std::fabs(values[i] - decoded[i]));
    }
    EXPECT_LE(worst, step / 2 * 1.0001f);
    EXPECT_GT(worst, step / 2 * 0.9f);
  }
}

}  // namespace gradwire::codec::test
