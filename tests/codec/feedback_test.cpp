// Error feedback: what is not sent is not lost.

#include "tests/codec/inputs.h"
#include "tests/codec/specs.h"

namespace gradwire::codec::test {
namespace {

constexpr std::size_t kFeedbackElems = 1500;

TEST(Feedback, SentAndResidualAddUp) {
  const Segments segments = make_segments({kFeedbackElems});
  for (const std::string& spec : all_variants()) {
    SCOPED_TRACE(spec);
    const Codec codec = make_codec(spec);
    for (const Kind kind : {Kind::kNormal, Kind::kFarFromZero}) {
      const Floats values = make_values(kind, kFeedbackElems, 1);
      const Floats old = make_values(Kind::kNormal, kFeedbackElems, 2);
      Floats next(kFeedbackElems);
      Message message(codec.message_bytes(segments));
      codec.encode(
          segments,
          values.data(),
          message,
          {old.data(), next.data()},
          {.key = 3});
      const Floats sent = decode(codec, segments, message);
      for (std::size_t i = 0; i < kFeedbackElems; ++i) {
        const double wanted = double{values[i]} + double{old[i]};
        // One rounding of the sum before, one of the difference after.
        const double bound = std::fabs(wanted) + std::fabs(double{next[i]});
        ASSERT_NEAR(double{sent[i]} + double{next[i]}, wanted, 0x1p-23 * bound);
      }
    }
  }
}

TEST(Feedback, ReducingAddsItsLossTimesTheDivisor) {
  const Segments segments = make_segments({kFeedbackElems});
  for (const std::string& spec : all_variants()) {
    SCOPED_TRACE(spec);
    const Codec codec = make_codec(spec);
    std::vector<Message> messages;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const Floats values = make_values(Kind::kNormal, kFeedbackElems, rank);
      messages.push_back(encode(codec, segments, values, {.key = rank}));
    }
    const std::vector<Codec::ConstBytes> inputs(
        messages.begin(), messages.end());
    Floats average(kFeedbackElems);
    codec.decode(segments, inputs, average.data(), 3);
    Floats residual(kFeedbackElems, 1.0f);
    Message out(codec.message_bytes(segments));
    codec.reduce(segments, inputs, 3, out, residual.data(), {.key = 9});
    const Floats sent = decode(codec, segments, out);
    for (std::size_t i = 0; i < kFeedbackElems; ++i) {
      const double lost = double{average[i]} - double{sent[i]};
      ASSERT_NEAR(residual[i], 1 + 3 * lost, 0x1p-22);
    }
  }
}

// Without feedback the error of a constant gradient grows with every step; with
// it the sum of what was sent stays within one encoding's error.
TEST(Feedback, SumsOfManyStepsStayTrue) {
  constexpr int kSteps = 64;
  const Segments segments = make_segments({kFeedbackElems});
  for (const CodecInfo& info : codecs()) {
    for (const std::string& spec : variants_of(info)) {
      SCOPED_TRACE(spec);
      const Codec codec = make_codec(spec);
      const Floats values = make_values(Kind::kNormal, kFeedbackElems, 1);
      const auto [low, high] = std::ranges::minmax(values);
      const double most = std::max(-low, high);
      Floats residual(kFeedbackElems, 0.0f);
      std::vector<double> sum(kFeedbackElems, 0.0);
      Message message(codec.message_bytes(segments));
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        codec.encode(
            segments,
            values.data(),
            message,
            {residual.data(), residual.data()},
            {.key = step});
        const Floats sent = decode(codec, segments, message);
        for (std::size_t i = 0; i < kFeedbackElems; ++i) {
          sum[i] += sent[i];
        }
      }
      // The residual makes a block somewhat larger than its values.
      for (std::size_t i = 0; i < kFeedbackElems; ++i) {
        ASSERT_NEAR(
            sum[i], kSteps * double{values[i]}, 1.5 * info.tolerance * most);
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::codec::test
