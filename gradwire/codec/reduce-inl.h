// Private to the codecs: reduces messages of several ranks to the message of
// their average, which is not written to memory in between.

#if defined(GRADWIRE_CODEC_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_REDUCE_INL_H_
#undef GRADWIRE_CODEC_REDUCE_INL_H_
#else
#define GRADWIRE_CODEC_REDUCE_INL_H_
#endif

#include "gradwire/codec/encode-inl.h"
#include "gradwire/codec/sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

// A tile of averages.
struct FromTile {
  const float* values;

  HWY_INLINE void prefetch_next(std::size_t) const {}
  template <bool kWhole>
  HWY_INLINE Floats read(std::size_t i, std::size_t count) const {
    return load<kWhole>(values + i, count);
  }
};

// Averages a tile of a block, from element `at` on, into `to`, and widens the
// range to it.
template <class Format, std::size_t kCount>
void average_tile(
    const ReduceArgs& args,
    const Divisor& by,
    const Block& block,
    std::size_t at,
    float* to,
    typename Format::Measure& range) {
  const Sum<Format, kCount> sum(args.messages, block.scale);
  // Copies, because what is reached through a reference stays in memory.
  const Divisor divisor = by;
  typename Format::Measure tile_range = range;
  sum.tile(
      block.codes + code_bytes<Format>(at),
      tile_at(block, at),
      [&](Floats v, std::size_t i, std::size_t count, auto whole) HWY_ATTR {
        v = divisor.apply(v);
        store<whole.value, false>(v, to + i, count);
        measure_vector<Format, whole.value>(tile_range, v, count);
      });
  range = tile_range;
}

template <class Format>
class Averages {
 public:
  using Measure = typename Format::Measure;
  using Scale = typename Format::Scale;

  HWY_INLINE explicit Averages(const ReduceArgs& args)
      : args_(args),
        divisor_(args.divisor),
        average_(kAverage[sum_kind(args.messages)]) {}

  HWY_INLINE void tile(
      const Block& block, std::size_t at, float* to, Measure& range) const {
    average_(args_, divisor_, block, at, to, range);
  }

  // Averages a block of one tile into `to`, and returns its scale.
  HWY_INLINE Scale scale_of_tile(const Block& block, float* to) const {
    Measure range;
    tile(block, 0, to, range);
    return range.finish(
        [&]() HWY_ATTR { return least_bits(FromTile{to}, block.n); });
  }
  // The scale of a longer block.
  Scale scale_of(const Block& block) const {
    return measure([&](const auto& body) HWY_ATTR { body(block); });
  }
  // One scale for all blocks.
  Scale scale_of_message() const {
    return measure([&](const auto& body) HWY_ATTR {
      each_block<Format>(args_.segments, 0, body);
    });
  }

 private:
  static constexpr std::array kAverage{
      &average_tile<Format, 0>,
      &average_tile<Format, 1>,
      &average_tile<Format, 2>,
      &average_tile<Format, 3>,
      &average_tile<Format, 4>};

  // Measures all blocks for which each_one(body) calls body(block).
  template <class EachOne>
  HWY_INLINE Scale measure(const EachOne& each_one) const {
    HWY_ALIGN std::array<float, kTile> average;
    Measure range;
    each_one([&](const Block& block) HWY_ATTR {
      for (std::size_t at = 0; at < block.n; at += kTile) {
        tile(block, at, average.data(), range);
      }
    });
    return range.finish([&]() HWY_ATTR {
      std::int32_t least = kAbsMask;
      Measure again;
      each_one([&](const Block& block) HWY_ATTR {
        for (std::size_t at = 0; at < block.n; at += kTile) {
          tile(block, at, average.data(), again);
          const FromTile source{average.data()};
          least = std::min(least, least_bits(source, tile_at(block, at)));
        }
      });
      return least;
    });
  }

  const ReduceArgs& args_;
  Divisor divisor_;
  decltype(&average_tile<Format, 0>) average_;
};

// Encodes a tile of averages, which begins with element `at` of a block.
template <class Format, bool kStochastic>
HWY_INLINE void encode_average(
    const ReduceArgs& args,
    const typename Format::Encoder& encoder,
    const Block& block,
    std::size_t at,
    const float* average) {
  const auto moved = static_cast<std::int64_t>(at);
  const auto noise = noise_at<kStochastic>(args.noise, block, at);
  const FromTile source{average};
  const std::size_t n = tile_at(block, at);
  std::uint8_t* out = args.out + block.codes + code_bytes<Format>(at);
  if (args.residual == nullptr) {
    encode_tile<Format, false, kStochastic>(
        encoder, source, DropLoss(), noise, n, out);
  } else {
    const AddLoss<Format::kScaleBytes == 0> loss{
        args.residual + block.offset + moved, args.divisor};
    encode_tile<Format, false, kStochastic>(
        encoder, source, loss, noise, n, out);
  }
}

// Encodes a long block, whose averages were not kept.
template <class Format, bool kStochastic>
void encode_long_block(
    const ReduceArgs& args,
    const Averages<Format>& averages,
    const Block& block,
    const typename Format::Encoder& encoder) {
  HWY_ALIGN std::array<float, kTile> average;
  typename Format::Measure range;
  for (std::size_t at = 0; at < block.n; at += kTile) {
    averages.tile(block, at, average.data(), range);
    encode_average<Format, kStochastic>(
        args, encoder, block, at, average.data());
  }
}

template <class Format, bool kStochastic>
void reduce_as(const ReduceArgs& args) {
  using Scale = typename Format::Scale;
  const Averages<Format> averages(args);
  const bool own_scales = has_own_scales<Format>(args.block);
  Scale common{};
  if (has_one_scale<Format>(args.block)) {
    common = averages.scale_of_message();
    put_scale<Format>(common, args.out + kHeaderBytes);
  }
  each_group<Format>(
      args.segments, args.block, [&](std::span<const Block> blocks) HWY_ATTR {
        HWY_ALIGN std::array<float, kTile> average;
        std::array<Scale, Blocks::kMost> scales;
        const auto is_long = [](const Block& block) { return block.n > kTile; };
        std::size_t at = 0;
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          const Block& block = blocks[i];
          scales[i] = common;
          if (own_scales) {
            scales[i] = is_long(block)
                            ? averages.scale_of(block)
                            : averages.scale_of_tile(block, &average[at]);
            put_scale<Format>(scales[i], args.out + block.scale);
          } else if (!is_long(block)) {
            typename Format::Measure range;
            averages.tile(block, 0, &average[at], range);
          }
          at += is_long(block) ? 0 : block.n;
        }
        at = 0;
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          const Block& block = blocks[i];
          const typename Format::Encoder encoder(scales[i]);
          if (!scales[i].finite()) {
            std::memset(args.out + block.codes, 0, code_bytes<Format>(block.n));
          } else if (is_long(block)) {
            encode_long_block<Format, kStochastic>(
                args, averages, block, encoder);
          } else {
            encode_average<Format, kStochastic>(
                args, encoder, block, 0, &average[at]);
          }
          at += block.n;
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

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
