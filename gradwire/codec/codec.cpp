#include "gradwire/codec/codec.h"

#include <algorithm>

#include "gradwire/base/error.h"

namespace gradwire::codec {
namespace {

// Where casts and messages of one scale are cut. They have no blocks, but whole
// cache lines are faster.
constexpr std::int64_t kDefaultCut = 512;

// Number of blocks, and bytes of their codes.
struct Count {
  std::int64_t blocks = 0;
  std::int64_t code_bytes = 0;
};

Count count(
    std::span<const Segment> segments, std::int64_t block, std::size_t bits) {
  Count result;
  const auto bytes = [&](std::int64_t elems) {
    return (elems * static_cast<std::int64_t>(bits) + 7) / 8;
  };
  for (const Segment& segment : segments) {
    const std::int64_t size =
        block > 0 ? block : std::max<std::int64_t>(segment.elems, 1);
    const std::int64_t whole = segment.elems / size;
    const std::int64_t rest = segment.elems % size;
    result.blocks += whole + (rest > 0);
    result.code_bytes += whole * bytes(size) + bytes(rest);
  }
  return result;
}

}  // namespace

Noise Noise::make(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t key = 0;
  for (const std::uint64_t number : numbers) {
    // The finaliser of splitmix64.
    std::uint64_t x = key + number + 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    key = x ^ (x >> 31);
  }
  return {key};
}

std::int64_t Codec::cut() const {
  return traits_.block > 0 ? traits_.block : kDefaultCut;
}

gradwire::Bytes Codec::message_parts(std::span<const Segment> segments) const {
  const Kernels& kernels = *traits_.kernels;
  const Count sizes = count(segments, traits_.block, kernels.code_bits);
  const std::int64_t scales = traits_.block > 0 ? sizes.blocks : 1;
  return {
      .payload = sizes.code_bytes,
      .metadata = static_cast<std::int64_t>(
          kHeaderBytes + scales * kernels.scale_bytes)};
}

std::size_t Codec::message_bytes(std::span<const Segment> segments) const {
  return static_cast<std::size_t>(message_parts(segments).total());
}

std::array<std::uint8_t, kHeaderBytes> Codec::header(
    std::span<const Segment> segments) const {
  const auto elems = static_cast<std::uint64_t>(count_elems(segments));
  const auto byte = [&](int i) {
    return static_cast<std::uint8_t>(elems >> (8 * i));
  };
  return {
      'g',
      'w',
      traits_.id,
      traits_.variant,
      byte(0),
      byte(1),
      byte(2),
      byte(3)};
}

void Codec::begin_message(std::span<const Segment> segments, Bytes out) const {
  const auto bytes = message_bytes(segments);
  if (out.size() != bytes) {
    fail("codec", "got room for ", out.size(), " bytes, expected ", bytes);
  }
  std::ranges::copy(header(segments), out.begin());
}

void Codec::check(std::span<const Segment> segments, ConstBytes message) const {
  const auto bytes = message_bytes(segments);
  if (message.size() != bytes) {
    fail(
        "codec",
        "a message of ",
        traits_.name,
        " has ",
        message.size(),
        " bytes, expected ",
        bytes);
  }
  if (!std::ranges::equal(header(segments), message.first(kHeaderBytes))) {
    fail("codec", "a message of ", traits_.name, " has a damaged header");
  }
  const std::size_t damaged =
      traits_.kernels->damaged_scale(segments, traits_.block, message.data());
  if (damaged > 0) {
    fail(
        "codec",
        "a message of ",
        traits_.name,
        " has a damaged scale at byte ",
        damaged);
  }
}

void Codec::check_sum(
    std::span<const Segment> segments,
    std::span<const ConstBytes> messages,
    float divisor) const {
  if (!(divisor >= 1)) {
    fail("codec", "got ", divisor, " to divide by, expected 1 or more");
  }
  for (const ConstBytes& message : messages) {
    check(segments, message);
  }
}

void Codec::encode(
    std::span<const Segment> segments,
    const float* values,
    Bytes out,
    Feedback feedback,
    Noise noise) const {
  begin_message(segments, out);
  traits_.kernels->encode(
      {.segments = segments,
       .block = traits_.block,
       .stochastic = traits_.stochastic,
       .noise = noise,
       .values = values,
       .residual = feedback.residual,
       .next_residual = feedback.next_residual,
       .out = out.data()});
}

bool Codec::decode(
    std::span<const Segment> segments,
    std::span<const ConstBytes> messages,
    float* out,
    float divisor) const {
  check_sum(segments, messages, divisor);
  return traits_.kernels->decode(
      {.segments = segments,
       .block = traits_.block,
       .messages = messages,
       .divisor = divisor,
       .out = out});
}

void Codec::reduce(
    std::span<const Segment> segments,
    std::span<const ConstBytes> messages,
    float divisor,
    Bytes out,
    float* residual,
    Noise noise) const {
  check_sum(segments, messages, divisor);
  begin_message(segments, out);
  traits_.kernels->reduce(
      {.segments = segments,
       .block = traits_.block,
       .messages = messages,
       .divisor = divisor,
       .stochastic = traits_.stochastic,
       .noise = noise,
       .residual = residual,
       .out = out.data()});
}

}  // namespace gradwire::codec
