#pragma once

// Compares a codec with its reference bit by bit: every operation, every kind
// of vectors, many lengths and inputs.

#include "tests/codec/inputs.h"

namespace gradwire::codec::test {

inline constexpr std::size_t kRanks = 6;

// One layout and one kind of input: what all operations should give.
struct Expected {
  Segments segments;
  std::array<Floats, kRanks> values;
  Floats residual;
  Noise noise;

  std::array<Message, kRanks> messages;
  Message with_feedback;
  Floats next_residual;
  // Of the first 1, 2, ... messages.
  std::array<Floats, kRanks> averages;
  std::array<Message, kRanks> reduced;
  std::array<Floats, kRanks> reduce_residuals;
};

// One that is not the number of messages.
inline float divisor_for(std::size_t messages) {
  return messages == 5 ? 1.0f : static_cast<float>(messages);
}

inline Expected expect_of(
    const Reference& reference, const Segments& segments, Kind kind) {
  Expected e;
  e.segments = segments;
  e.noise.key = 0x1234567890abcdef + segments.size();
  const auto n = static_cast<std::size_t>(count_elems(segments));
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const auto seed = static_cast<std::uint32_t>(rank + 100 * n);
    e.values[rank] = make_values(kind, n, seed);
    e.messages[rank] = reference.encode(segments, e.values[rank], e.noise.key);
  }
  e.residual = make_values(kind, n, 77);
  for (float& v : e.residual) {
    v /= 8;
  }
  e.next_residual = e.residual;
  e.with_feedback =
      reference.encode(segments, e.values[0], e.noise.key, &e.next_residual);
  for (std::size_t i = 0; i < kRanks; ++i) {
    const float divisor = divisor_for(i + 1);
    const std::span messages(e.messages.data(), i + 1);
    e.averages[i] = reference.decode(segments, messages, divisor);
    e.reduce_residuals[i] = e.residual;
    e.reduced[i] = reference.reduce(
        segments, e.averages[i], divisor, e.noise.key, e.reduce_residuals[i]);
  }
  return e;
}

inline void check_encode(const Codec& codec, const Expected& e) {
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(same_bytes(
        encode(codec, e.segments, e.values[rank], e.noise), e.messages[rank]));
  }
  // Residuals in memory of their own and in place.
  Message message(codec.message_bytes(e.segments));
  Floats next(e.residual.size(), 9.0f);
  codec.encode(
      e.segments,
      e.values[0].data(),
      message,
      {e.residual.data(), next.data()},
      e.noise);
  EXPECT_TRUE(same_bytes(message, e.with_feedback));
  EXPECT_TRUE(same_floats(next, e.next_residual));
  Message again(message.size());
  Floats in_place = e.residual;
  codec.encode(
      e.segments,
      e.values[0].data(),
      again,
      {in_place.data(), in_place.data()},
      e.noise);
  EXPECT_TRUE(same_bytes(again, e.with_feedback));
  EXPECT_TRUE(same_floats(in_place, e.next_residual));
}

inline bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float v) { return std::isfinite(v); });
}

inline void check_decode_and_reduce(const Codec& codec, const Expected& e) {
  const std::vector<Codec::ConstBytes> inputs(
      e.messages.begin(), e.messages.end());
  for (std::size_t i = 0; i < kRanks; ++i) {
    SCOPED_TRACE(std::to_string(i + 1) + " messages");
    const std::span messages(inputs.data(), i + 1);
    const float divisor = divisor_for(i + 1);
    Floats average(e.residual.size(), 9.0f);
    const bool finite =
        codec.decode(e.segments, messages, average.data(), divisor);
    EXPECT_TRUE(same_floats(average, e.averages[i]));
    EXPECT_EQ(finite, all_finite(e.averages[i]));

    Message reduced(codec.message_bytes(e.segments), 9);
    codec.reduce(e.segments, messages, divisor, reduced, nullptr, e.noise);
    EXPECT_TRUE(same_bytes(reduced, e.reduced[i]));
    Message again(reduced.size(), 9);
    Floats residual = e.residual;
    codec.reduce(
        e.segments, messages, divisor, again, residual.data(), e.noise);
    EXPECT_TRUE(same_bytes(again, e.reduced[i]));
    EXPECT_TRUE(same_floats(residual, e.reduce_residuals[i]));
  }
}

inline void check_against(const std::string& spec, const Reference& reference) {
  SCOPED_TRACE(spec);
  std::vector<Expected> expected;
  for (std::size_t i = 0; i < kLengths.size(); ++i) {
    expected.push_back(expect_of(
        reference, make_segments(kLengths[i]), kKinds[i % kKinds.size()]));
  }
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    const auto& lengths = kRaggedLengths[i % kRaggedLengths.size()];
    expected.push_back(expect_of(reference, make_segments(lengths), kKinds[i]));
  }
  on_every_target([&] {
    const Codec codec = make_codec(spec);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE("case " + std::to_string(i));
      check_encode(codec, expected[i]);
      check_decode_and_reduce(codec, expected[i]);
      if (::testing::Test::HasFailure()) {
        return;
      }
    }
  });
}

// make(block) is the reference for blocks of that many elements.
template <class Make>
void check_all_blocks(
    const std::string& codec, const std::string& options, const Make& make) {
  for (const std::int64_t block : {32, 33, 512, 2048, 0}) {
    const std::string name = block > 0 ? std::to_string(block) : "tensor";
    check_against(codec + ":block=" + name + "," + options, make(block));
  }
}

}  // namespace gradwire::codec::test
