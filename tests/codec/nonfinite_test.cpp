// NaN and infinities arrive as such, in the blocks they were in and nowhere
// else.

#include "tests/codec/inputs.h"
#include "tests/codec/specs.h"

namespace gradwire::codec::test {
namespace {

constexpr std::size_t kBlock = 64;
constexpr std::size_t kNonFiniteElems = 10 * kBlock + 7;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const Floats& bad_values() {
  static const Floats values{
      kNan, -kNan, kInfinity, -kInfinity, std::bit_cast<float>(0x7f800001u)};
  return values;
}

// Whether an element must decode to something finite.
bool expect_finite(const Codec& codec, std::size_t i, std::size_t bad) {
  return has_scales(codec) ? i / kBlock != bad / kBlock : i != bad;
}

void expect_finite_elsewhere(
    const Codec& codec, const Floats& values, std::size_t bad) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::isfinite(values[i]), expect_finite(codec, i, bad))
        << "element " << i << ", bad is " << bad;
  }
}

TEST(NonFinite, StaysInItsBlock) {
  const Segments segments = make_segments({kNonFiniteElems});
  for (const std::string& variant : all_variants()) {
    const std::string spec = with_block(variant, "64");
    SCOPED_TRACE(spec);
    on_every_target([&] {
      const Codec codec = make_codec(spec);
      for (const std::size_t bad :
           {std::size_t{0}, 5 * kBlock + 63, kNonFiniteElems - 1}) {
        for (const float v : bad_values()) {
          Floats values = make_values(Kind::kNormal, kNonFiniteElems, 4);
          const Message good = encode(codec, segments, values);
          values[bad] = v;
          const Message message = encode(codec, segments, values);
          const std::vector<Codec::ConstBytes> both{message, good};
          Floats decoded(kNonFiniteElems);
          ASSERT_FALSE(codec.decode(segments, {&both[0], 1}, decoded.data()));
          expect_finite_elsewhere(codec, decoded, bad);
          ASSERT_TRUE(codec.decode(segments, {&both[1], 1}, decoded.data()));
          // Beside a good message, and through a reduction.
          ASSERT_FALSE(codec.decode(segments, both, decoded.data(), 2));
          expect_finite_elsewhere(codec, decoded, bad);
          Message reduced(message.size());
          codec.reduce(segments, both, 2, reduced);
          expect_finite_elsewhere(codec, decode(codec, segments, reduced), bad);
        }
      }
    });
  }
}

TEST(NonFinite, OneScaleSpoilsTheMessage) {
  const Segments segments = make_segments({100, 7});
  for (const std::string& variant : all_variants()) {
    const Codec codec = make_codec(with_block(variant, "tensor"));
    if (!codec.has_one_scale()) {
      continue;
    }
    SCOPED_TRACE(variant);
    Floats values = make_values(Kind::kNormal, 107, 4);
    values[103] = kNan;
    const Floats decoded =
        decode(codec, segments, encode(codec, segments, values));
    for (const float v : decoded) {
      EXPECT_FALSE(std::isfinite(v));
    }
  }
}

// One bad step must not stay in the memory of all later ones: where nothing
// finite was sent, the old residual is kept.
TEST(NonFinite, ResidualsStayFinite) {
  const Segments segments = make_segments({kNonFiniteElems});
  for (const std::string& variant : all_variants()) {
    const std::string spec = with_block(variant, "64");
    SCOPED_TRACE(spec);
    on_every_target([&] {
      const Codec codec = make_codec(spec);
      const std::size_t bad = kNonFiniteElems - 2;
      for (const float v : bad_values()) {
        Floats values = make_values(Kind::kNormal, kNonFiniteElems, 4);
        values[bad] = v;
        const Floats old = make_values(Kind::kNormal, kNonFiniteElems, 5);
        Message message(codec.message_bytes(segments));
        Floats next(kNonFiniteElems);
        codec.encode(
            segments, values.data(), message, {old.data(), next.data()});
        Floats reduced = old;
        const Codec::ConstBytes bytes(message);
        Message out(message.size());
        codec.reduce(segments, {&bytes, 1}, 1, out, reduced.data());
        for (std::size_t i = 0; i < kNonFiniteElems; ++i) {
          ASSERT_TRUE(std::isfinite(next[i])) << i;
          ASSERT_TRUE(std::isfinite(reduced[i])) << i;
          if (!expect_finite(codec, i, bad)) {
            ASSERT_EQ(next[i], old[i]);
            ASSERT_EQ(reduced[i], old[i]);
          }
        }
      }
    });
  }
}

TEST(NonFinite, BeyondTheRangeOfHalves) {
  const Codec codec = make_codec("fp16");
  const Segments segments = make_segments({3});
  const Floats values{1.0f, 1e6f, -1e6f};
  Message message(codec.message_bytes(segments));
  Floats residual(3, 0.5f);
  codec.encode(
      segments, values.data(), message, {residual.data(), residual.data()});
  EXPECT_EQ(
      decode(codec, segments, message), (Floats{1.5f, kInfinity, -kInfinity}));
  EXPECT_EQ(residual, (Floats{0.0f, 0.5f, 0.5f}));
}

}  // namespace
}  // namespace gradwire::codec::test
