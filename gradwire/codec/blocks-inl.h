// Private to the codecs: how the blocks of a message lie in memory, and their
// codes.

#if defined(GRADWIRE_CODEC_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_BLOCKS_INL_H_
#undef GRADWIRE_CODEC_BLOCKS_INL_H_
#else
#define GRADWIRE_CODEC_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <span>

#include "gradwire/codec/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec {
namespace HWY_NAMESPACE {

template <class Format>
constexpr std::size_t code_bytes(std::size_t n) {
  return (n * Format::kCodeBits + 7) / 8;
}

// Half bytes lie in pairs: the even element in the low half.
HWY_INLINE void unpack_halves(
    const std::uint8_t* from, std::size_t n, std::uint8_t* to) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::uint16_t> d16;
  const hn::Rebind<std::uint8_t, decltype(d16)> d8;
  const std::size_t lanes = hn::Lanes(d16);
  const hn::Repartition<std::uint8_t, decltype(d16)> d8x2;
  for (; i + lanes <= n / 2; i += lanes) {
    const auto pairs = hn::PromoteTo(d16, hn::LoadU(d8, from + i));
    const auto low = hn::And(pairs, hn::Set(d16, 0x000f));
    const auto high = hn::And(hn::ShiftLeft<4>(pairs), hn::Set(d16, 0x0f00));
    hn::StoreU(hn::BitCast(d8x2, hn::Or(low, high)), d8x2, to + 2 * i);
  }
#endif
  for (; 2 * i < n; ++i) {
    to[2 * i] = from[i] & 0xf;
    to[2 * i + 1] = from[i] >> 4;
  }
}

HWY_INLINE void pack_halves(
    std::uint8_t* from, std::size_t n, std::uint8_t* to) {
  if (n % 2 == 1) {
    from[n] = 0;
  }
  std::size_t i = 0;
  const std::size_t pairs = (n + 1) / 2;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::uint16_t> d16;
  const hn::Rebind<std::uint8_t, decltype(d16)> d8;
  const hn::Rebind<std::int16_t, decltype(d16)> di16;
  const hn::Repartition<std::uint8_t, decltype(d16)> d8x2;
  const std::size_t lanes = hn::Lanes(d16);
  for (; i + lanes <= pairs; i += lanes) {
    const auto two = hn::BitCast(d16, hn::LoadU(d8x2, from + 2 * i));
    const auto one =
        hn::And(hn::Or(two, hn::ShiftRight<4>(two)), hn::Set(d16, 0x00ff));
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di16, one)), d8, to + i);
  }
#endif
  for (; i < pairs; ++i) {
    to[i] = static_cast<std::uint8_t>(from[2 * i] | from[2 * i + 1] << 4);
  }
}

// The codes of a tile: in the message itself, or unpacked beside it.
template <class Format>
struct TileCodes {
  using Stored = typename Format::Stored;
  static constexpr bool kPacked = Format::kCodeBits < 8;

  HWY_INLINE const Stored* read(const std::uint8_t* from, std::size_t n) {
    if constexpr (kPacked) {
      unpack_halves(from, n, unpacked.data());
      return unpacked.data();
    } else {
      return reinterpret_cast<const Stored*>(from);
    }
  }
  HWY_INLINE Stored* begin_write(std::uint8_t* to) {
    if constexpr (kPacked) {
      return unpacked.data();
    } else {
      return reinterpret_cast<Stored*>(to);
    }
  }
  HWY_INLINE void end_write(std::uint8_t* to, std::size_t n) {
    if constexpr (kPacked) {
      pack_halves(unpacked.data(), n, to);
    }
  }

  HWY_ALIGN std::array<std::uint8_t, kPacked ? kTile + 2 : 1> unpacked;
};

template <bool kWhole, class Coder, class Stored>
HWY_INLINE Floats
get(const Coder& coder, const Stored* from, std::size_t count) {
  if constexpr (kWhole) {
    return coder.get(from);
  } else {
    HWY_ALIGN std::array<Stored, hn::MaxLanes(FloatTag())> lanes{};
    std::memcpy(lanes.data(), from, count * sizeof(Stored));
    return coder.get(lanes.data());
  }
}

template <
    bool kWhole,
    bool kStream,
    bool kStochastic,
    class Coder,
    class Stored>
HWY_INLINE Floats
put(const Coder& coder,
    Floats v,
    const NoiseLanes& noise,
    std::size_t i,
    Stored* to,
    std::size_t count) {
  if constexpr (kWhole) {
    return coder.template put<kStream, kStochastic>(v, noise, i, to);
  } else {
    HWY_ALIGN std::array<Stored, hn::MaxLanes(FloatTag())> lanes;
    const Floats value =
        coder.template put<false, kStochastic>(v, noise, i, lanes.data());
    std::memcpy(to, lanes.data(), count * sizeof(Stored));
    return value;
  }
}

// Calls body(stream, place, offset, n) for every block, in order. A block size
// of 0: segments are not cut.
template <class Body>
HWY_INLINE void each_block(
    std::span<const Segment> segments, std::int64_t block, const Body& body) {
  std::int64_t offset = 0;
  for (const Segment& segment : segments) {
    const std::int64_t step = block > 0 ? block : segment.elems;
    for (std::int64_t at = 0; at < segment.elems; at += step) {
      const std::int64_t n = std::min(step, segment.elems - at);
      body(
          segment.stream,
          segment.first + at,
          offset + at,
          static_cast<std::size_t>(n));
    }
    offset += segment.elems;
  }
}

template <class Format>
HWY_INLINE std::uint8_t* put_scale(
    const typename Format::Scale& scale, std::uint8_t* out) {
  if constexpr (Format::kScaleBytes > 0) {
    static_assert(sizeof(scale) == Format::kScaleBytes);
    std::memcpy(out, &scale, Format::kScaleBytes);
  }
  return out + Format::kScaleBytes;
}

template <class Format>
HWY_INLINE typename Format::Scale get_scale(const std::uint8_t* from) {
  typename Format::Scale scale;
  if constexpr (Format::kScaleBytes > 0) {
    std::memcpy(&scale, from, Format::kScaleBytes);
  }
  return scale;
}

HWY_INLINE bool aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) %
             (hn::MaxLanes(FloatTag()) * sizeof(float)) ==
         0;
}

// Streaming stores need aligned addresses: all blocks must start at some.
HWY_INLINE bool can_stream(
    std::span<const Segment> segments, std::int64_t block, const void* to) {
  return segments.size() == 1 && segments[0].elems >= kStreamElems &&
         block % 64 == 0 && aligned(to);
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::codec
HWY_AFTER_NAMESPACE();

#endif
