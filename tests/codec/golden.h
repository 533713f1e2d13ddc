#pragma once

// The bits of a codec as they were on x86 when the test was written: the same
// on every processor, references included.

#include "tests/codec/inputs.h"
#include "tests/support/golden.h"

namespace gradwire::codec::test {

// Adds all that three ranks do with values of these exponents.
inline void add_operations(
    gradwire::test::Golden& golden, const Codec& codec, std::uint32_t least) {
  constexpr std::size_t kRanks = 3;
  const Segments segments = make_segments({700, 1, 33, 2049});
  const std::int64_t elems = count_elems(segments);
  std::vector<Message> messages;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const Floats values = gradwire::test::golden_floats(elems, rank, least);
    Floats residual = gradwire::test::golden_floats(elems, rank + 10, least);
    Message& message =
        messages.emplace_back(Message(codec.message_bytes(segments)));
    codec.encode(
        segments,
        values.data(),
        message,
        {residual.data(), residual.data()},
        Noise::make({rank}));
    golden.add(message);
    golden.add(residual);
  }
  const std::vector<Codec::ConstBytes> inputs(messages.begin(), messages.end());
  Floats average(static_cast<std::size_t>(elems));
  EXPECT_TRUE(codec.decode(segments, inputs, average.data(), kRanks));
  golden.add(average);
  Message reduced(messages[0].size());
  Floats residual = gradwire::test::golden_floats(elems, 20, least);
  codec.reduce(
      segments, inputs, kRanks, reduced, residual.data(), Noise::make({7}));
  golden.add(reduced);
  golden.add(residual);
}

inline void check_golden(const std::string& spec, const std::string& expected) {
  on_every_target([&] {
    gradwire::test::Golden golden;
    const Codec codec = make_codec(spec);
    for (const std::uint32_t least : {118, 0}) {
      add_operations(golden, codec, least);
    }
    EXPECT_EQ(golden.text(), expected) << spec;
  });
}

}  // namespace gradwire::codec::test
