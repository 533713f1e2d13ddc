#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradwire/base/bytes.h"
#include "gradwire/base/options.h"
#include "gradwire/codec/kernels.h"
#include "gradwire/codec/layout.h"

namespace gradwire::codec {

// Error feedback: encodes values + residual, and writes what the encoding loses
// to next_residual. Both may be the same memory. Null: no feedback.
struct Feedback {
  const float* residual = nullptr;
  float* next_residual = nullptr;
};

// Floats to bytes and back, no network. A message holds the elements of some
// segments in order:
//
//   header   "gw", codec, options, number of elements (little endian, 8 bytes)
//   scale    only where one scale serves the whole message
//   blocks   each its scale (none for casts) and its codes
//
// Both sides know the segments; the header detects a disagreement. NaN and Inf
// make their block non-finite, and no other. A constant or zero block is exact.
// Immutable, so thread safe; encode, decode and reduce allocate nothing.
class Codec {
 public:
  struct Traits {
    std::string name;
    std::uint8_t id = 0;
    // Tells variants of one codec apart in the header.
    std::uint8_t variant = 0;
    const Kernels* kernels = nullptr;
    // Elements in a block; 0: one scale for a whole message.
    std::int64_t block = 0;
    bool stochastic = false;
  };

  using Bytes = std::span<std::uint8_t>;
  using ConstBytes = std::span<const std::uint8_t>;

  explicit Codec(Traits traits) : traits_(std::move(traits)) {}

  const std::string& name() const {
    return traits_.name;
  }
  bool is_stochastic() const {
    return traits_.stochastic;
  }
  // One scale for a whole message, which must then not be cut in two.
  bool has_one_scale() const {
    return traits_.block == 0 && traits_.kernels->scale_bytes > 0;
  }
  // Segments are cut between blocks of this many elements.
  std::int64_t cut() const;

  std::size_t message_bytes(std::span<const Segment> segments) const;
  // The same as payload (codes) and metadata (header and scales).
  gradwire::Bytes message_parts(std::span<const Segment> segments) const;

  // `out` must have message_bytes().
  void encode(
      std::span<const Segment> segments,
      const float* values,
      Bytes out,
      Feedback feedback = {},
      Noise noise = {}) const;

  // out = (sum over the messages in order) / divisor, which is 1 or more.
  // Throws Error for a message that is too short, too long or damaged, before
  // anything is written. False when a result is not finite.
  bool decode(
      std::span<const Segment> segments,
      std::span<const ConstBytes> messages,
      float* out,
      float divisor = 1.0f) const;

  // Encodes (sum over the messages in order) / divisor. Adds divisor times what
  // this encoding loses to `residual`, if any. Throws as decode().
  void reduce(
      std::span<const Segment> segments,
      std::span<const ConstBytes> messages,
      float divisor,
      Bytes out,
      float* residual = nullptr,
      Noise noise = {}) const;

 private:
  std::array<std::uint8_t, kHeaderBytes> header(
      std::span<const Segment> segments) const;
  void begin_message(std::span<const Segment> segments, Bytes out) const;
  void check(std::span<const Segment> segments, ConstBytes message) const;
  void check_sum(
      std::span<const Segment> segments,
      std::span<const ConstBytes> messages,
      float divisor) const;

  Traits traits_;
};

// One row of the registry.
struct CodecInfo {
  std::string name;
  std::string summary;
  // The largest error of one encoding, relative to the largest element of its
  // block.
  double tolerance = 0.0;
  std::vector<Option> options;
  std::function<Codec(const Options&)> make;
  // Whether its hook has error feedback when nobody says.
  bool feedback = true;
  // What it sends are floats of this type, in which another hook can work on
  // gradients as well.
  enum class Floats { kNone, kHalf, kBFloat16 };
  Floats floats = Floats::kNone;
};

// All codecs, in the order of registry.cpp.
const std::vector<CodecInfo>& codecs();

// The row of that name. Throws Error that lists the known names.
const CodecInfo& find_codec(const std::string& name);

// "int8:block=256,rounding=stochastic". Throws Error that says what is wrong
// and what is expected.
Codec make_codec(const std::string& spec);

// The canonical text: options sorted by name, those that change nothing left
// out. Equal codecs have equal texts. Throws as make_codec().
std::string check_codec_spec(const std::string& spec);

}  // namespace gradwire::codec
