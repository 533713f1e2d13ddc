// Feeds one codec with messages that no encoder wrote. Whatever they are,
// decoding and reducing them ends in a result or in an Error that left outputs
// alone, with every kind of vector. What the codec itself wrote decodes, with
// every kind to the same bits. The codec is GRADWIRE_FUZZ_CODEC.

#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/input.h"
#include "fuzz/require.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec.h"
#include "tests/codec/specs.h"

namespace gradwire::codec {
namespace {

using Message = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

// One variant of the codec, for one kind of vectors and for none.
struct Pair {
  Codec vectors;
  Codec plain;
};

std::vector<Pair> make_pairs() {
  const auto targets = hwy::SupportedAndGeneratedTargets();
  std::vector<Pair> pairs;
  for (const auto& variant :
       test::variants_of(find_codec(GRADWIRE_FUZZ_CODEC))) {
    for (const char* block : {"32", "33", "512", "2000", "tensor"}) {
      const std::string spec = test::with_block(variant, block);
      hwy::SetSupportedTargetsForTest(targets.back());
      const Codec plain = make_codec(spec);
      for (const auto target : targets) {
        hwy::SetSupportedTargetsForTest(target);
        pairs.push_back({make_codec(spec), plain});
      }
      hwy::SetSupportedTargetsForTest(0);
    }
  }
  return pairs;
}

bool same(const Floats& a, const Floats& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool bits = std::memcmp(&a[i], &b[i], sizeof(float)) == 0;
    if (!bits && !(std::isnan(a[i]) && std::isnan(b[i]))) {
      return false;
    }
  }
  return true;
}

bool all_finite(const Floats& values) {
  for (const float v : values) {
    if (!std::isfinite(v)) {
      return false;
    }
  }
  return true;
}

struct Layout {
  Segments segments;
  std::size_t elems = 0;
};

Layout read_layout(Input& input) {
  Layout layout;
  for (int left = input.byte() % 4; left >= 0; --left) {
    const std::int64_t elems = input.number() % 2100;
    layout.segments.push_back({elems, input.byte(), 0});
  }
  layout.elems = static_cast<std::size_t>(count_elems(layout.segments));
  return layout;
}

// Bytes of any number; or, so that damage behind it is reached as well, of the
// right number behind the right header.
Message read_message(Input& input, const Codec& codec, const Layout& layout) {
  const std::uint8_t how = input.byte();
  const std::size_t right = codec.message_bytes(layout.segments);
  if (how % 4 == 0) {
    return input.bytes(input.number() % (right + 2));
  }
  Message message(right);
  const Floats zeros(layout.elems);
  codec.encode(layout.segments, zeros.data(), message);
  if (how % 4 != 1) {
    const Message body = input.bytes(right - kHeaderBytes);
    std::ranges::copy(body, message.begin() + kHeaderBytes);
  }
  return message;
}

void check_decode(
    const Pair& pair,
    const Layout& layout,
    const std::vector<Codec::ConstBytes>& messages,
    float divisor) {
  const auto decode = [&](const Codec& codec, Floats& out) {
    try {
      const bool finite =
          codec.decode(layout.segments, messages, out.data(), divisor);
      require(finite == all_finite(out), "finite is not what decode says");
      return true;
    } catch (const Error&) {
      require(same(out, Floats(out.size(), 5.0f)), "an error wrote something");
      return false;
    }
  };
  Floats vectors(layout.elems, 5.0f);
  Floats plain(layout.elems, 5.0f);
  const bool accepted = decode(pair.vectors, vectors);
  require(accepted == decode(pair.plain, plain), "targets disagree");
  // Scales that no encoder wrote may round otherwise where sums are fused.
  if (!test::has_scales(pair.vectors)) {
    require(same(vectors, plain), "targets decode to other bits");
  }
}

void check_reduce(
    const Codec& codec,
    const Layout& layout,
    const std::vector<Codec::ConstBytes>& messages,
    float divisor,
    Noise noise) {
  Message reduced(codec.message_bytes(layout.segments));
  Floats residual(layout.elems);
  try {
    codec.reduce(
        layout.segments, messages, divisor, reduced, residual.data(), noise);
  } catch (const Error&) {
    return;
  }
  // No Error from here on: what reduce() wrote is a message.
  const Codec::ConstBytes bytes(reduced);
  codec.decode(layout.segments, {&bytes, 1}, residual.data());
}

void check_encode(
    const Pair& pair,
    const Layout& layout,
    Input& input,
    float divisor,
    Noise noise) {
  const Floats values = input.floats(layout.elems);
  Message message(pair.vectors.message_bytes(layout.segments));
  Message plain(message.size());
  pair.vectors.encode(layout.segments, values.data(), message, {}, noise);
  pair.plain.encode(layout.segments, values.data(), plain, {}, noise);
  Floats decoded(layout.elems);
  const Codec::ConstBytes bytes(message);
  const bool finite =
      pair.vectors.decode(layout.segments, {&bytes, 1}, decoded.data());
  const std::vector<Codec::ConstBytes> three(3, bytes);
  Floats plain_sum(layout.elems);
  Floats sum(layout.elems);
  pair.vectors.decode(layout.segments, three, sum.data(), divisor);
  pair.plain.decode(layout.segments, three, plain_sum.data(), divisor);
  require(same(sum, plain_sum), "targets decode to other bits");
  if (all_finite(values)) {
    require(message == plain, "targets encode to other bytes");
    require(
        finite || !test::has_scales(pair.vectors),
        "finite values became infinite");
  } else {
    require(!finite, "something that is not finite was lost");
  }
}

void run(Input input) {
  static const std::vector<Pair> pairs = make_pairs();
  const Pair& pair = pairs[input.number() % pairs.size()];
  const Layout layout = read_layout(input);
  const Noise noise{.key = input.number()};
  const auto divisor = static_cast<float>(1 + input.byte() % 8);
  std::vector<Message> messages;
  for (int left = input.byte() % 7; left > 0; --left) {
    messages.push_back(read_message(input, pair.vectors, layout));
  }
  const std::vector<Codec::ConstBytes> inputs(messages.begin(), messages.end());
  check_decode(pair, layout, inputs, divisor);
  check_reduce(pair.vectors, layout, inputs, divisor, noise);
  check_encode(pair, layout, input, divisor, noise);
}

}  // namespace
}  // namespace gradwire::codec

extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  gradwire::codec::run({data, size});
  return 0;
}
