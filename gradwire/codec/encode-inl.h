// Private to the codecs: values to a message, with or without error feedback,
// in one pass over memory.

#if defined(GRADWIRE_CODEC_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_ENCODE_INL_H_
#undef GRADWIRE_CODEC_ENCODE_INL_H_
#else
#define GRADWIRE_CODEC_ENCODE_INL_H_
#endif

#include "gradwire/codec/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec {
namespace HWY_NAMESPACE {

// Where the values to encode come from: memory, with the residual of earlier
// steps added where there is feedback.
template <bool kFeedback>
struct FromMemory {
  const float* values;
  const float* residual;

  template <bool kWhole>
  HWY_INLINE Floats read(std::size_t i, std::size_t count) const {
    const Floats v = load<kWhole>(values + i, count);
    if constexpr (kFeedback) {
      return hn::Add(v, load<kWhole>(residual + i, count));
    } else {
      return v;
    }
  }
};

template <class Format, bool kWhole>
HWY_INLINE void measure_vector(
    typename Format::Measure& range, Floats v, std::size_t count) {
  if constexpr (!kWhole) {
    // Lanes past the end repeat the first one: they must not widen a range.
    const FloatTag d;
    v = hn::IfThenElse(hn::FirstN(d, count), v, hn::Set(d, hn::GetLane(v)));
  }
  range.add(v);
}

template <class Format, class Source>
HWY_INLINE void measure(
    typename Format::Measure& range, const Source& source, std::size_t n) {
  each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
    measure_vector<Format, whole.value>(
        range, source.template read<whole.value>(i, count), count);
  });
}

// A lane mask of what is neither NaN nor infinite.
HWY_INLINE hn::Mask<FloatTag> is_finite(Floats v) {
  return hn::RebindMask(
      FloatTag(), hn::Lt(abs_bits(v), hn::Set(IntTag(), kInfinityBits)));
}

// What happens to what a tile's encoding lost. A cast finds out element by
// element that something cannot be sent: that must not stay in a residual for
// ever, so the old residual does. (Blocks with a scale are left out as a
// whole.)
struct DropLoss {
  template <bool kWhole>
  HWY_INLINE void take(Floats, Floats, std::size_t, std::size_t) const {}
};
template <bool kStream, bool kMayFail>
struct KeepLoss {
  const float* old_residual;
  float* residual;
  template <bool kWhole>
  HWY_INLINE void take(
      Floats wanted, Floats sent, std::size_t i, std::size_t count) const {
    Floats lost = hn::Sub(wanted, sent);
    if constexpr (kMayFail) {
      lost = hn::IfThenElse(
          is_finite(sent), lost, load<kWhole>(old_residual + i, count));
    }
    store<kWhole, kStream>(lost, residual + i, count);
  }
};
template <bool kMayFail>
struct AddLoss {
  float* residual;
  float weight;
  template <bool kWhole>
  HWY_INLINE void take(
      Floats wanted, Floats sent, std::size_t i, std::size_t count) const {
    const FloatTag d;
    Floats lost = hn::Mul(hn::Sub(wanted, sent), hn::Set(d, weight));
    if constexpr (kMayFail) {
      lost = hn::IfThenElse(is_finite(sent), lost, hn::Set(d, -0.0f));
    }
    store<kWhole, false>(
        hn::Add(load<kWhole>(residual + i, count), lost), residual + i, count);
  }
};

template <
    class Format,
    bool kStream,
    bool kStochastic,
    class Source,
    class Loss>
HWY_INLINE void encode_tile(
    const typename Format::Coder& coder,
    const Source& source,
    const Loss& loss,
    const NoiseLanes& noise,
    std::size_t n,
    std::uint8_t* out) {
  TileCodes<Format> codes;
  auto* to = codes.begin_write(out);
  each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
    const Floats wanted = source.template read<whole.value>(i, count);
    const Floats sent = put<whole.value, kStream, kStochastic>(
        coder, wanted, noise, i, to + i, count);
    loss.template take<whole.value>(wanted, sent, i, count);
  });
  codes.end_write(out, n);
}

template <class Format, bool kFeedback, bool kStochastic, bool kStream>
void encode_as(const EncodeArgs& args) {
  using Source = FromMemory<kFeedback>;
  const auto source_at = [&](std::int64_t offset) HWY_ATTR {
    return Source{
        args.values + offset, kFeedback ? args.residual + offset : nullptr};
  };
  std::uint8_t* out = args.out;
  typename Format::Scale scale{};
  const bool one_scale = Format::kScaleBytes > 0 && args.block == 0;
  if (one_scale) {
    typename Format::Measure range;
    each_block(args.segments, 0, [&](auto, auto, auto offset, auto n) HWY_ATTR {
      measure<Format>(range, source_at(offset), n);
    });
    scale = range.finish();
    out = put_scale<Format>(scale, out);
  }
  each_block(
      args.segments,
      args.block,
      [&](std::uint64_t stream,
          std::int64_t place,
          std::int64_t offset,
          std::size_t n) HWY_ATTR {
        if (Format::kScaleBytes > 0 && !one_scale) {
          typename Format::Measure range;
          measure<Format>(range, source_at(offset), n);
          scale = range.finish();
          out = put_scale<Format>(scale, out);
        }
        if (!scale.finite()) {
          std::memset(out, 0, code_bytes<Format>(n));
          if constexpr (kFeedback) {
            std::memmove(
                args.next_residual + offset,
                args.residual + offset,
                n * sizeof(float));
          }
          out += code_bytes<Format>(n);
          return;
        }
        const typename Format::Coder coder(scale);
        for (std::size_t at = 0; at < n; at += kTile) {
          const std::size_t tile = std::min(kTile, n - at);
          const auto begin = offset + static_cast<std::int64_t>(at);
          const auto noise = NoiseLanes::make(
              args.noise, stream, place + static_cast<std::int64_t>(at));
          if constexpr (kFeedback) {
            encode_tile<Format, false, kStochastic>(
                coder,
                source_at(begin),
                KeepLoss<kStream, Format::kScaleBytes == 0>{
                    args.residual + begin, args.next_residual + begin},
                noise,
                tile,
                out);
          } else {
            encode_tile<Format, kStream, kStochastic>(
                coder, source_at(begin), DropLoss(), noise, tile, out);
          }
          out += code_bytes<Format>(tile);
        }
      });
}

template <class Format, bool kFeedback>
void encode_with(const EncodeArgs& args) {
  const bool stream =
      kFeedback ? can_stream(args.segments, args.block, args.next_residual)
                : Format::kScaleBytes == 0 &&
                      can_stream(args.segments, args.block, args.out);
  if (args.stochastic && Format::kCanRound) {
    encode_as<Format, kFeedback, Format::kCanRound, false>(args);
  } else if (stream) {
    encode_as<Format, kFeedback, false, true>(args);
    hwy::FlushStream();
  } else {
    encode_as<Format, kFeedback, false, false>(args);
  }
}

template <class Format>
void encode(const EncodeArgs& args) {
  if (args.residual != nullptr) {
    encode_with<Format, true>(args);
  } else {
    encode_with<Format, false>(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::codec
HWY_AFTER_NAMESPACE();

#endif
