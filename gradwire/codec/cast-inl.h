// Private to the codecs: floats rounded to 16 bits, nothing scaled. See
// kernels-inl.h for what a Format is.

#if defined(GRADWIRE_CODEC_CAST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_CAST_INL_H_
#undef GRADWIRE_CODEC_CAST_INL_H_
#else
#define GRADWIRE_CODEC_CAST_INL_H_
#endif

#include "gradwire/codec/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

using HalfTag = hn::Rebind<std::uint16_t, FloatTag>;
using Halves = hn::Vec<HalfTag>;

// The lower halves of words whose upper ones are zero.
HWY_INLINE Halves truncate(Words words) {
  return hn::DemoteTo(HalfTag(), hn::BitCast(IntTag(), words));
}

// `Half` says how vectors become halves: narrow() and widen().
template <class Half>
struct Cast {
  static constexpr std::size_t kCodeBits = 16;
  static constexpr std::size_t kScaleBytes = 0;
  static constexpr bool kCanRound = false;
  using Stored = std::uint16_t;

  struct Scale {
    bool finite() const {
      return true;
    }
    bool valid() const {
      return true;
    }
  };
  struct Measure {
    HWY_INLINE void add(Floats) {}
    template <class Least>
    HWY_INLINE Scale finish(const Least&) const {
      return {};
    }
  };
  struct Encoder {
    HWY_INLINE explicit Encoder(Scale) {}

    template <bool kStream, bool kStochastic>
    HWY_INLINE Floats
    put(Floats v, const NoiseLanes&, std::size_t, Stored* to) const {
      const HalfTag dh;
      const Halves half = Half::narrow(v);
      // Shorter vectors cannot be streamed: Highway would store 16 bytes.
      if constexpr (kStream && hn::MaxLanes(dh) * sizeof(Stored) >= 16) {
        hn::Stream(half, dh, to);
      } else {
        hn::StoreU(half, dh, to);
      }
      return Half::widen(half);
    }
    HWY_INLINE Floats lost(Floats wanted, Floats sent) const {
      return hn::Sub(wanted, sent);
    }
  };
  struct Decoder {
    HWY_INLINE explicit Decoder(Scale) {}

    HWY_INLINE Floats get(const Stored* from) const {
      return Half::widen(hn::LoadU(HalfTag(), from));
    }
    HWY_INLINE Floats add(const Stored* from, Floats sum) const {
      return hn::Add(sum, get(from));
    }
  };
};

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
