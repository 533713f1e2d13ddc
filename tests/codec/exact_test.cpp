// What every codec keeps, whatever its precision.

#include "tests/codec/inputs.h"
#include "tests/codec/specs.h"

namespace gradwire::codec::test {
namespace {

TEST(Codecs, WithinTheirTolerance) {
  for (const CodecInfo& info : codecs()) {
    for (const std::string& spec : variants_of(info)) {
      SCOPED_TRACE(spec);
      const Codec codec = make_codec(spec);
      const Segments segments = make_segments({512, 512, 512, 100});
      for (const Kind kind : {Kind::kNormal, Kind::kManyZeros}) {
        const Floats values = make_values(kind, 1636, 3);
        const Floats decoded =
            decode(codec, segments, encode(codec, segments, values));
        for (std::size_t begin = 0; begin < values.size(); begin += 512) {
          const std::size_t end = std::min(begin + 512, values.size());
          double most = 0;
          double worst = 0;
          for (std::size_t i = begin; i < end; ++i) {
            most = std::max(most, std::fabs(double{values[i]}));
            worst = std::max(
                worst, std::fabs(double{values[i]} - double{decoded[i]}));
          }
          EXPECT_LE(worst, info.tolerance * most);
          EXPECT_GT(worst, 0);
        }
      }
    }
  }
}

// For casts what the format can hold; for the others any float, of either sign.
Floats constants_for(const Codec& codec) {
  if (!has_scales(codec)) {
    return {0.0f, 1.0f, 0.5f, 1.5f};
  }
  const float most = std::numeric_limits<float>::max();
  const float denorm = std::numeric_limits<float>::denorm_min();
  return {0.0f, 1.0f, 0.1f, 1 / 3.0f, 1e-40f, denorm, 3 * denorm, 3e38f, most};
}

TEST(Codecs, ConstantBlocksAreExact) {
  for (const std::string& variant : all_variants()) {
    for (const char* block : {"512", "tensor"}) {
      const std::string spec = with_block(variant, block);
      SCOPED_TRACE(spec);
      on_every_target([&] {
        const Codec codec = make_codec(spec);
        const Segments segments = make_segments({700});
        for (const float constant : constants_for(codec)) {
          for (const float v : {constant, -constant}) {
            const Floats values(700, v);
            const Message message = encode(codec, segments, values);
            const Codec::ConstBytes bytes(message);
            Floats decoded(700);
            ASSERT_TRUE(codec.decode(segments, {&bytes, 1}, decoded.data()));
            ASSERT_EQ(decoded, values);
          }
        }
      });
    }
  }
}

// Rounding at random must not throw dice about what needs no rounding. So many
// elements that one chance in a million would show.
TEST(Codecs, ConstantsAreExactForAnyNoise) {
  constexpr std::size_t kElems = 1 << 20;
  const Segments segments = make_segments({kElems});
  for (const std::string& spec : all_variants()) {
    const Codec codec = make_codec(spec);
    if (!codec.is_stochastic()) {
      continue;
    }
    SCOPED_TRACE(spec);
    for (const float constant : {0.1f, 3.4e38f}) {
      const Floats values(kElems, constant);
      for (std::uint64_t key = 0; key < 4; ++key) {
        const Message message = encode(codec, segments, values, {key});
        ASSERT_EQ(decode(codec, segments, message), values);
      }
    }
  }
}

// No sum and no difference on the way may overflow.
TEST(Codecs, FiniteBlocksStayFinite) {
  const float most = std::numeric_limits<float>::max();
  std::mt19937 random(1);
  for (const std::string& spec : all_variants()) {
    const Codec codec = make_codec(spec);
    if (!has_scales(codec)) {
      continue;  // halves end early
    }
    SCOPED_TRACE(spec);
    const Segments segments = make_segments({37});
    for (int round = 0; round < 200; ++round) {
      Floats values = make_values(Kind::kHuge, 37, random());
      // The largest floats there are, none of them divisible by much.
      float high = most;
      for (unsigned i = random() % 100; i > 0; --i) {
        high = std::nextafter(high, 0.0f);
      }
      values[3] = high;
      values[36] = round % 2 == 0 ? -most : -high;
      const Message message = encode(codec, segments, values);
      const Codec::ConstBytes bytes(message);
      Floats decoded(37);
      ASSERT_TRUE(codec.decode(segments, {&bytes, 1}, decoded.data()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_LE(
            std::fabs(double{values[i]} - double{decoded[i]}), most / 4.0);
      }
    }
  }
}

// Far below the smallest normal float steps have few digits: still an error of
// a step at most, half a one to nearest.
TEST(Codecs, TheSmallestFloatsAreRoundedTooNotLost) {
  for (const std::string spec :
       {"int8", "int8:scheme=affine", "int4", "int4:scheme=affine"}) {
    SCOPED_TRACE(spec);
    const Codec codec = make_codec(spec);
    const double codes = spec[3] == '8' ? 127 : 7;
    const double unit = std::numeric_limits<float>::denorm_min();
    const Segments segments = make_segments({256});
    for (int most : {1, 3, 10, 31, 100, 127, 128, 200, 380, 1000, 50000}) {
      Floats values(256);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const int units = most - static_cast<int>(i) * 2 * most / 255;
        values[i] = static_cast<float>(units * unit);
      }
      const Floats decoded =
          decode(codec, segments, encode(codec, segments, values));
      const double step = std::ceil(most / codes);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_LE(
            std::fabs(double{values[i]} - double{decoded[i]}), step / 2 * unit)
            << most << " units, element " << i;
      }
    }
  }
}

// Writing past caches is for large outputs at aligned addresses only. The
// results are those of the ordinary way.
TEST(Codecs, LargeMessagesEqualTheirParts) {
  constexpr std::int64_t kElems = (4 << 20) + 33;
  constexpr std::int64_t kHalf = 2 << 20;
  const Segments whole{{kElems, 5, 0}};
  const Segments cut{{kHalf, 5, 0}, {kElems - kHalf, 5, kHalf}};
  Floats memory(kElems + 16);
  auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  float* aligned = memory.data() + (64 - address % 64) / 4 % 16;
  Floats values(kElems);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 2654435761u % 2001) * 1e-3f - 1.0f;
  }
  const auto check = [&](const std::string& spec) {
    SCOPED_TRACE(spec);
    const Codec codec = make_codec(spec);
    const std::size_t bytes = codec.message_bytes(whole);
    ASSERT_EQ(codec.message_bytes(cut), bytes);
    // A message whose codes begin at an aligned address, and one that is not.
    Message large(bytes + 64);
    address = reinterpret_cast<std::uintptr_t>(large.data());
    const Codec::Bytes got(large.data() + (120 - address % 64) % 64, bytes);
    Message expected(bytes);
    codec.encode(whole, values.data(), got);
    codec.encode(cut, values.data(), expected);
    ASSERT_TRUE(std::ranges::equal(got, expected));

    const Codec::ConstBytes message(expected);
    Floats decoded(kElems);
    EXPECT_TRUE(codec.decode(whole, {&message, 1}, aligned));
    EXPECT_TRUE(codec.decode(cut, {&message, 1}, decoded.data()));
    EXPECT_TRUE(same_floats({aligned, std::size_t{kElems}}, decoded));

    Floats residual(kElems, 0.25f);
    codec.encode(whole, values.data(), got, {residual.data(), aligned});
    codec.encode(
        cut, values.data(), expected, {residual.data(), residual.data()});
    ASSERT_TRUE(std::ranges::equal(got, expected));
    EXPECT_TRUE(same_floats({aligned, std::size_t{kElems}}, residual));
  };
  on_every_target([&] {
    for (const char* spec : {"fp16", "bf16", "int8"}) {
      check(spec);
    }
  });
}

}  // namespace
}  // namespace gradwire::codec::test
