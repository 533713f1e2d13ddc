// Private to the codecs: encodes values to a message, with or without error
// feedback, in one pass over memory.

#if defined(GRADWIRE_CODEC_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_ENCODE_INL_H_
#undef GRADWIRE_CODEC_ENCODE_INL_H_
#else
#define GRADWIRE_CODEC_ENCODE_INL_H_
#endif

#include "gradwire/codec/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

// Reads the values to encode from memory, and with feedback adds the residual
// of earlier steps.
template <bool kFeedback>
struct FromMemory {
  const float* values;
  const float* residual;

  // Fetches what is measured next while this is encoded.
  HWY_INLINE void prefetch_next(std::size_t i) const {
    hwy::Prefetch(values + i + kTile);
    if constexpr (kFeedback) {
      hwy::Prefetch(residual + i + kTile);
    }
  }

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
    // Lanes past the end repeat the first one, so that they do not widen a
    // range.
    const FloatTag d;
    v = hn::IfThenElse(hn::FirstN(d, count), v, hn::Set(d, hn::GetLane(v)));
  }
  range.add(v);
}

template <class Format, class Source>
HWY_INLINE typename Format::Measure measure(
    typename Format::Measure range, const Source& source, std::size_t n) {
  each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
    measure_vector<Format, whole.value>(
        range, source.template read<whole.value>(i, count), count);
  });
  return range;
}

// The smallest magnitude, as the bits of a float.
template <class Source>
HWY_NOINLINE std::int32_t least_bits(const Source& source, std::size_t n) {
  const IntTag di;
  Ints least = hn::Set(di, kAbsMask);
  each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
    Ints bits = abs_bits(source.template read<whole.value>(i, count));
    if constexpr (!whole.value) {
      bits = hn::IfThenElse(hn::FirstN(di, count), bits, hn::Set(di, kAbsMask));
    }
    least = hn::Min(least, bits);
  });
  return hn::GetLane(hn::MinOfLanes(di, least));
}

// Lanes that are neither NaN nor infinite.
HWY_INLINE hn::Mask<FloatTag> is_finite(Floats v) {
  return hn::RebindMask(
      FloatTag(), hn::Lt(abs_bits(v), hn::Set(IntTag(), kInfinityBits)));
}

// What becomes of the loss of a tile. A cast discovers element by element that
// a value cannot be sent. An infinite loss would stay in the residual for ever,
// so such an element keeps its old residual. (Blocks with a scale are left out
// as a whole.)
struct DropLoss {
  template <bool kWhole, class Encoder>
  HWY_INLINE void take(
      const Encoder&, Floats, Floats, std::size_t, std::size_t) const {}
};
template <bool kStream, bool kMayFail>
struct KeepLoss {
  const float* old_residual;
  float* residual;
  template <bool kWhole, class Encoder>
  HWY_INLINE void take(
      const Encoder& encoder,
      Floats wanted,
      Floats sent,
      std::size_t i,
      std::size_t count) const {
    Floats lost = encoder.lost(wanted, sent);
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
  template <bool kWhole, class Encoder>
  HWY_INLINE void take(
      const Encoder& encoder,
      Floats wanted,
      Floats sent,
      std::size_t i,
      std::size_t count) const {
    const FloatTag d;
    Floats lost = hn::Mul(encoder.lost(wanted, sent), hn::Set(d, weight));
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
    const typename Format::Encoder& encoder,
    const Source& source,
    const Loss& loss,
    const NoiseLanes& noise,
    std::size_t n,
    std::uint8_t* out) {
  TileCodes<Format> codes;
  auto* to = codes.begin_write(out);
  each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
    source.prefetch_next(i);
    const Floats wanted = source.template read<whole.value>(i, count);
    const Floats sent = put<whole.value, kStream, kStochastic>(
        encoder, wanted, noise, i, to + i, count);
    loss.template take<whole.value>(encoder, wanted, sent, i, count);
  });
  codes.end_write(out, n);
}

template <bool kFeedback>
HWY_INLINE FromMemory<kFeedback> source_at(
    const EncodeArgs& args, std::int64_t offset) {
  return {args.values + offset, kFeedback ? args.residual + offset : nullptr};
}

template <class Format, bool kFeedback, bool kStochastic, bool kStream>
HWY_INLINE void encode_block(
    const EncodeArgs& args, const Block& block, typename Format::Scale scale) {
  std::uint8_t* out = args.out + block.codes;
  if (!scale.finite()) {
    std::memset(out, 0, code_bytes<Format>(block.n));
    if constexpr (kFeedback) {
      std::memmove(
          args.next_residual + block.offset,
          args.residual + block.offset,
          block.n * sizeof(float));
    }
    return;
  }
  const typename Format::Encoder encoder(scale);
  for (std::size_t at = 0; at < block.n; at += kTile) {
    const auto moved = static_cast<std::int64_t>(at);
    const std::int64_t begin = block.offset + moved;
    const auto source = source_at<kFeedback>(args, begin);
    const auto noise = noise_at<kStochastic>(args.noise, block, at);
    std::uint8_t* to = out + code_bytes<Format>(at);
    if constexpr (kFeedback) {
      encode_tile<Format, false, kStochastic>(
          encoder,
          source,
          KeepLoss<kStream, Format::kScaleBytes == 0>{
              args.residual + begin, args.next_residual + begin},
          noise,
          tile_at(block, at),
          to);
    } else {
      encode_tile<Format, kStream, kStochastic>(
          encoder, source, DropLoss(), noise, tile_at(block, at), to);
    }
  }
}

template <class Format, bool kFeedback>
HWY_INLINE typename Format::Scale measure_block(
    const EncodeArgs& args, const Block& block) {
  const auto source = source_at<kFeedback>(args, block.offset);
  const auto range =
      measure<Format>(typename Format::Measure(), source, block.n);
  return range.finish([&]() HWY_ATTR { return least_bits(source, block.n); });
}

// One scale for all blocks.
template <class Format, bool kFeedback>
typename Format::Scale measure_message(const EncodeArgs& args) {
  typename Format::Measure range;
  each_block<Format>(args.segments, 0, [&](const Block& block) HWY_ATTR {
    const auto source = source_at<kFeedback>(args, block.offset);
    range = measure<Format>(range, source, block.n);
  });
  return range.finish([&]() HWY_ATTR {
    std::int32_t least = kAbsMask;
    each_block<Format>(args.segments, 0, [&](const Block& block) HWY_ATTR {
      const auto source = source_at<kFeedback>(args, block.offset);
      least = std::min(least, least_bits(source, block.n));
    });
    return least;
  });
}

template <class Format, bool kFeedback, bool kStochastic, bool kStream>
void encode_as(const EncodeArgs& args) {
  using Scale = typename Format::Scale;
  const bool own_scales = has_own_scales<Format>(args.block);
  Scale common{};
  if (has_one_scale<Format>(args.block)) {
    common = measure_message<Format, kFeedback>(args);
    put_scale<Format>(common, args.out + kHeaderBytes);
  }
  each_group<Format>(
      args.segments, args.block, [&](std::span<const Block> blocks) HWY_ATTR {
        std::array<Scale, Blocks::kMost> scales;
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          scales[i] = common;
          if (own_scales) {
            scales[i] = measure_block<Format, kFeedback>(args, blocks[i]);
            put_scale<Format>(scales[i], args.out + blocks[i].scale);
          }
        }
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          encode_block<Format, kFeedback, kStochastic, kStream>(
              args, blocks[i], scales[i]);
        }
      });
}

template <class Format, bool kFeedback>
void encode_with(const EncodeArgs& args) {
  const bool stream =
      kFeedback
          ? can_stream(args.segments, args.block, args.next_residual)
          : Format::kScaleBytes == 0 &&
                can_stream(args.segments, args.block, args.out + kHeaderBytes);
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

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
