#pragma once

// Codecs once more, from the description in docs/codecs.md: one element after
// another, in plain C++, nothing shared with gradwire/codec but the layout of
// segments. What a codec's format adds is a class derived from Reference.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "gradwire/codec/layout.h"

namespace gradwire::codec::test {

using Floats = std::vector<float>;
using Message = std::vector<std::uint8_t>;

// The floats that travel in front of a block's codes: 0, 1 or 2 of them.
using Scale = std::array<float, 2>;

// Random bits of one element of a parameter.
inline std::uint32_t noise_bits(
    std::uint64_t key, std::uint64_t stream, std::int64_t place) {
  const auto mix64 = [](std::uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 31;
    return x;
  };
  const auto at = static_cast<std::uint64_t>(place);
  const std::uint64_t wide = mix64(mix64(key ^ mix64(stream)) + (at >> 32));
  const auto folded = static_cast<std::uint32_t>(wide ^ (wide >> 32));
  std::uint32_t x = static_cast<std::uint32_t>(at) * 0x9e3779b9u ^ folded;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// In (0, 1): an odd number of 2^-16.
inline float noise_uniform(std::uint32_t bits) {
  return static_cast<float>(2 * (bits >> 17) + 1) / 65536.0f;
}

class Reference {
 public:
  struct Traits {
    std::uint8_t id = 0;
    std::uint8_t variant = 0;
    int code_bits = 8;
    int scale_floats = 1;
    // 0: one scale a message.
    std::int64_t block = 512;
  };

  explicit Reference(Traits traits) : traits_(traits) {}
  virtual ~Reference() = default;

  virtual Scale measure(std::span<const float> block) const = 0;
  // `noise` is of this element.
  virtual std::uint32_t put(
      float v, Scale scale, std::uint32_t noise) const = 0;
  virtual float get(std::uint32_t code, Scale scale) const = 0;

  bool is_cast() const {
    return traits_.scale_floats == 0;
  }

  // `residual`, if any, is added before and gets what was lost.
  Message encode(
      const Segments& segments,
      const Floats& values,
      std::uint64_t key,
      Floats* residual = nullptr) const {
    Floats wanted = values;
    if (residual != nullptr) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        wanted[i] += (*residual)[i];
      }
    }
    return write(segments, wanted, key, [&](std::size_t i, float lost) {
      if (residual != nullptr) {
        (*residual)[i] = lost;
      }
    });
  }

  Floats decode(
      const Segments& segments,
      std::span<const Message> messages,
      float divisor) const {
    Floats sum = read(segments, messages[0]);
    for (const Message& message : messages.subspan(1)) {
      const Floats next = read(segments, message);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += next[i];
      }
    }
    for (float& v : sum) {
      v /= divisor;
    }
    return sum;
  }

  Message reduce(
      const Segments& segments,
      const Floats& average,
      float divisor,
      std::uint64_t key,
      Floats& residual) const {
    return write(segments, average, key, [&](std::size_t i, float lost) {
      residual[i] += lost * divisor;
    });
  }

 private:
  struct Run {
    std::size_t begin;
    std::size_t elems;
    std::uint64_t stream;
    std::int64_t first;
  };

  std::vector<Run> runs(const Segments& segments) const {
    std::vector<Run> result;
    std::size_t begin = 0;
    for (const Segment& segment : segments) {
      for (std::int64_t at = 0; at < segment.elems;) {
        std::int64_t n = segment.elems - at;
        if (traits_.block > 0 && n > traits_.block) {
          n = traits_.block;
        }
        result.push_back(
            {begin,
             static_cast<std::size_t>(n),
             segment.stream,
             segment.first + at});
        begin += static_cast<std::size_t>(n);
        at += n;
      }
    }
    return result;
  }

  void append_scale(Message& message, Scale scale) const {
    for (int i = 0; i < traits_.scale_floats; ++i) {
      std::array<std::uint8_t, 4> bytes;
      std::memcpy(bytes.data(), &scale[static_cast<std::size_t>(i)], 4);
      message.insert(message.end(), bytes.begin(), bytes.end());
    }
  }

  // Codes one after another, the first in the lowest bits, filled up to a byte.
  void append_codes(
      Message& message, std::span<const std::uint32_t> codes) const {
    std::uint32_t open = 0;
    int bits = 0;
    for (const std::uint32_t code : codes) {
      open |= code << bits;
      for (bits += traits_.code_bits; bits >= 8; bits -= 8) {
        message.push_back(static_cast<std::uint8_t>(open));
        open >>= 8;
      }
    }
    if (bits > 0) {
      message.push_back(static_cast<std::uint8_t>(open));
    }
  }

  template <class Lost>
  Message write(
      const Segments& segments,
      const Floats& wanted,
      std::uint64_t key,
      const Lost& lost) const {
    Message message{'g', 'w', traits_.id, traits_.variant};
    for (int shift = 0; shift < 32; shift += 8) {
      message.push_back(static_cast<std::uint8_t>(wanted.size() >> shift));
    }
    Scale scale{};
    if (traits_.block == 0) {
      scale = measure(wanted);
      append_scale(message, scale);
    }
    for (const Run& run : runs(segments)) {
      if (traits_.block > 0) {
        scale = measure({wanted.data() + run.begin, run.elems});
        append_scale(message, scale);
      }
      std::vector<std::uint32_t> codes(run.elems, 0);
      const bool finite = is_cast() || std::isfinite(scale[0]);
      for (std::size_t k = 0; finite && k < run.elems; ++k) {
        const float v = wanted[run.begin + k];
        const auto place = run.first + static_cast<std::int64_t>(k);
        codes[k] = put(v, scale, noise_bits(key, run.stream, place));
        const float sent = get(codes[k], scale);
        if (std::isfinite(sent)) {
          lost(run.begin + k, v - sent);
        }
      }
      append_codes(message, codes);
    }
    return message;
  }

  Floats read(const Segments& segments, const Message& message) const {
    Floats values;
    const std::uint8_t* from = message.data() + 8;
    Scale scale{};
    const auto read_scale = [&] {
      const auto bytes = 4 * static_cast<std::size_t>(traits_.scale_floats);
      std::memcpy(scale.data(), from, bytes);
      from += bytes;
    };
    if (traits_.block == 0) {
      read_scale();
    }
    const auto bits = static_cast<std::size_t>(traits_.code_bits);
    for (const Run& run : runs(segments)) {
      if (traits_.block > 0) {
        read_scale();
      }
      for (std::size_t k = 0; k < run.elems; ++k) {
        std::uint32_t code = from[k * bits / 8];
        if (bits == 16) {
          code |= static_cast<std::uint32_t>(from[2 * k + 1]) << 8;
        } else if (bits == 4) {
          code = k % 2 == 0 ? code & 15 : code >> 4;
        }
        values.push_back(get(code, scale));
      }
      from += (run.elems * bits + 7) / 8;
    }
    return values;
  }

  Traits traits_;
};

}  // namespace gradwire::codec::test
