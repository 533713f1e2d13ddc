// Private to the codecs: the codes of a block in memory, packed or not.

#if defined(GRADWIRE_CODEC_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_CODES_INL_H_
#undef GRADWIRE_CODEC_CODES_INL_H_
#else
#define GRADWIRE_CODEC_CODES_INL_H_
#endif

#include "gradwire/codec/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

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

// The codes of a vector, zeros past its end.
template <bool kWhole, class Stored, class Body>
HWY_INLINE Floats
with_codes(const Stored* from, std::size_t count, const Body& body) {
  if constexpr (kWhole) {
    return body(from);
  } else {
    HWY_ALIGN std::array<Stored, hn::MaxLanes(FloatTag())> lanes{};
    std::memcpy(lanes.data(), from, count * sizeof(Stored));
    return body(lanes.data());
  }
}

template <
    bool kWhole,
    bool kStream,
    bool kStochastic,
    class Encoder,
    class Stored>
HWY_INLINE Floats
put(const Encoder& encoder,
    Floats v,
    const NoiseLanes& noise,
    std::size_t i,
    Stored* to,
    std::size_t count) {
  if constexpr (kWhole) {
    return encoder.template put<kStream, kStochastic>(v, noise, i, to);
  } else {
    HWY_ALIGN std::array<Stored, hn::MaxLanes(FloatTag())> lanes;
    const Floats sent =
        encoder.template put<false, kStochastic>(v, noise, i, lanes.data());
    std::memcpy(to, lanes.data(), count * sizeof(Stored));
    return sent;
  }
}

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
