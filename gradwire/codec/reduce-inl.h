// Private to the codecs: messages of several ranks to the message of their
// average, without a trip to memory in between.

#if defined(GRADWIRE_CODEC_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_REDUCE_INL_H_
#undef GRADWIRE_CODEC_REDUCE_INL_H_
#else
#define GRADWIRE_CODEC_REDUCE_INL_H_
#endif

#include "gradwire/codec/decode-inl.h"
#include "gradwire/codec/encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec {
namespace HWY_NAMESPACE {

// A tile of averages.
struct FromTile {
  const float* values;
  template <bool kWhole>
  HWY_INLINE Floats read(std::size_t i, std::size_t count) const {
    return load<kWhole>(values + i, count);
  }
};

// Averages a tile into `to`. Returns `range` widened to it.
template <class Format>
HWY_INLINE typename Format::Measure average_tile(
    const ReduceArgs& args,
    Place place,
    std::size_t n,
    float* to,
    typename Format::Measure range) {
  const Divisor divisor(args.divisor);
  sum_tile<Format>(
      args.messages,
      place,
      n,
      [&](Floats sum, std::size_t i, std::size_t count, auto whole) HWY_ATTR {
        const Floats v = divisor.apply(sum);
        store<whole.value, false>(v, to + i, count);
        measure_vector<Format, whole.value>(range, v, count);
      });
  return range;
}

template <class Format, bool kStochastic>
HWY_INLINE void encode_average(
    const ReduceArgs& args,
    const typename Format::Coder& coder,
    const float* average,
    const NoiseLanes& noise,
    std::int64_t offset,
    std::size_t n,
    std::uint8_t* out) {
  const FromTile source{average};
  if (args.residual == nullptr) {
    encode_tile<Format, false, kStochastic>(
        coder, source, DropLoss(), noise, n, out);
  } else {
    encode_tile<Format, false, kStochastic>(
        coder,
        source,
        AddLoss<Format::kScaleBytes == 0>{args.residual + offset, args.divisor},
        noise,
        n,
        out);
  }
}

// The scale of what blocks from `place` on average to, without keeping it.
template <class Format>
void measure_average(
    const ReduceArgs& args,
    typename Format::Measure& range,
    Place place,
    std::size_t n) {
  HWY_ALIGN std::array<float, kTile> average;
  for (std::size_t at = 0; at < n; at += kTile) {
    const std::size_t tile = std::min(kTile, n - at);
    range = average_tile<Format>(args, place, tile, average.data(), range);
    place.codes += code_bytes<Format>(tile);
  }
}

template <class Format, bool kStochastic>
void reduce_as(const ReduceArgs& args) {
  const bool one_scale = Format::kScaleBytes > 0 && args.block == 0;
  Place place{kHeaderBytes, kHeaderBytes};
  place.codes += one_scale ? Format::kScaleBytes : 0;
  typename Format::Scale scale{};
  if (one_scale) {
    typename Format::Measure range;
    Place at = place;
    each_block(args.segments, 0, [&](auto, auto, auto, auto n) HWY_ATTR {
      measure_average<Format>(args, range, at, n);
      at.codes += code_bytes<Format>(n);
    });
    scale = range.finish();
    put_scale<Format>(scale, args.out);
  }
  each_block(
      args.segments,
      args.block,
      [&](std::uint64_t stream,
          std::int64_t first,
          std::int64_t offset,
          std::size_t n) HWY_ATTR {
        HWY_ALIGN std::array<float, kTile> average;
        // A block of one tile is averaged once, a longer one twice.
        const bool short_block = n <= kTile;
        const bool own_scale = Format::kScaleBytes > 0 && !one_scale;
        std::uint8_t* scale_out = args.out + (place.codes - kHeaderBytes);
        if (own_scale) {
          place.scale = place.codes;
          place.codes += Format::kScaleBytes;
        }
        typename Format::Measure range;
        if (short_block) {
          range = average_tile<Format>(args, place, n, average.data(), range);
        } else if (own_scale) {
          measure_average<Format>(args, range, place, n);
        }
        if (own_scale) {
          scale = range.finish();
          put_scale<Format>(scale, scale_out);
        }
        if (!scale.finite()) {
          std::memset(
              args.out + (place.codes - kHeaderBytes),
              0,
              code_bytes<Format>(n));
          place.codes += code_bytes<Format>(n);
          return;
        }
        const typename Format::Coder coder(scale);
        for (std::size_t at = 0; at < n; at += kTile) {
          const std::size_t tile = std::min(kTile, n - at);
          const auto moved = static_cast<std::int64_t>(at);
          if (!short_block) {
            range =
                average_tile<Format>(args, place, tile, average.data(), range);
          }
          encode_average<Format, kStochastic>(
              args,
              coder,
              average.data(),
              NoiseLanes::make(args.noise, stream, first + moved),
              offset + moved,
              tile,
              args.out + (place.codes - kHeaderBytes));
          place.codes += code_bytes<Format>(tile);
        }
      });
}

template <class Format>
void reduce(const ReduceArgs& args) {
  if (args.stochastic && Format::kCanRound) {
    reduce_as<Format, Format::kCanRound>(args);
  } else {
    reduce_as<Format, false>(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::codec
HWY_AFTER_NAMESPACE();

#endif
