#pragma once

// Private to the codecs: the operations of one codec for one kind of processor.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "gradwire/codec/layout.h"

namespace gradwire::codec {

// The source of stochastic rounding: a counter-based generator. The same key
// gives the same bits, whatever the threads, buckets and vector lengths.
struct Noise {
  std::uint64_t key = 0;

  // One for every sequence of numbers, such as step and rank.
  static Noise make(std::initializer_list<std::uint64_t> numbers);
};

inline constexpr std::size_t kHeaderBytes = 8;

struct EncodeArgs {
  std::span<const Segment> segments;
  // Elements in a block; 0: one scale for the whole message.
  std::int64_t block = 0;
  bool stochastic = false;
  Noise noise = {};
  const float* values = nullptr;
  // As in Feedback.
  const float* residual = nullptr;
  float* next_residual = nullptr;
  // A message; its header is written by others.
  std::uint8_t* out = nullptr;
};

struct DecodeArgs {
  std::span<const Segment> segments;
  std::int64_t block = 0;
  // One message a rank, header included, summed in this order.
  std::span<const std::span<const std::uint8_t>> messages;
  // What the sum is divided by.
  float divisor = 1.0f;
  float* out = nullptr;
};

struct ReduceArgs {
  std::span<const Segment> segments;
  std::int64_t block = 0;
  std::span<const std::span<const std::uint8_t>> messages;
  float divisor = 1.0f;
  bool stochastic = false;
  Noise noise = {};
  // Error feedback: the loss of this encoding, multiplied by the divisor, is
  // added to it. Null: no feedback.
  float* residual = nullptr;
  // As in EncodeArgs.
  std::uint8_t* out = nullptr;
};

struct Kernels {
  std::size_t scale_bytes;
  std::size_t code_bits;
  void (*encode)(const EncodeArgs&);
  // False when something that was decoded is not finite.
  bool (*decode)(const DecodeArgs&);
  void (*reduce)(const ReduceArgs&);
  // The place in a message, header included, of a scale that no encoder writes;
  // 0: there is none.
  std::size_t (*damaged_scale)(
      std::span<const Segment>, std::int64_t block, const std::uint8_t*);
};

}  // namespace gradwire::codec
