// Private to the codecs: how the blocks of a message lie in memory.

#if defined(GRADWIRE_CODEC_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_BLOCKS_INL_H_
#undef GRADWIRE_CODEC_BLOCKS_INL_H_
#else
#define GRADWIRE_CODEC_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <span>

#include "gradwire/codec/codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

struct Block {
  std::uint64_t stream = 0;
  // Place of its first element in the stream, and among all elements.
  std::int64_t place = 0;
  std::int64_t offset = 0;
  std::size_t n = 0;
  // Where in a message its scale and its codes begin.
  std::size_t scale = 0;
  std::size_t codes = 0;
};

// Blocks that share one scale do not keep it with their codes.
template <class Format>
constexpr bool has_one_scale(std::int64_t block) {
  return Format::kScaleBytes > 0 && block == 0;
}

template <class Format>
constexpr bool has_own_scales(std::int64_t block) {
  return Format::kScaleBytes > 0 && block > 0;
}

// Calls body(block) for every block, in order. With a block size of 0 every
// segment is one block.
template <class Format, class Body>
HWY_INLINE void each_block(
    std::span<const Segment> segments, std::int64_t size, const Body& body) {
  const bool one_scale = has_one_scale<Format>(size);
  std::size_t next = kHeaderBytes + (one_scale ? Format::kScaleBytes : 0);
  Block block;
  block.scale = kHeaderBytes;
  for (const Segment& segment : segments) {
    const std::int64_t step = size > 0 ? size : segment.elems;
    for (std::int64_t at = 0; at < segment.elems; at += step) {
      const std::int64_t n = std::min(step, segment.elems - at);
      block.stream = segment.stream;
      block.place = segment.first + at;
      block.n = static_cast<std::size_t>(n);
      if (!one_scale) {
        block.scale = next;
        next += Format::kScaleBytes;
      }
      block.codes = next;
      body(block);
      block.offset += n;
      next += code_bytes<Format>(block.n);
    }
  }
}

// How many elements the tile of a block from element `at` on has.
HWY_INLINE std::size_t tile_at(const Block& block, std::size_t at) {
  return std::min(kTile, block.n - at);
}

// What rounds the elements of a block from element `at` on.
template <bool kStochastic>
HWY_INLINE NoiseLanes
noise_at(Noise noise, const Block& block, std::size_t at) {
  if constexpr (kStochastic) {
    return NoiseLanes::make(
        noise, block.stream, block.place + static_cast<std::int64_t>(at));
  } else {
    return {};
  }
}

// Blocks that are worked on together. All of them are measured before the first
// is encoded, so that nothing waits for a scale.
struct Blocks {
  static constexpr std::size_t kMost = 8;

  std::array<Block, kMost> blocks;
  std::size_t count = 0;
  std::size_t elems = 0;

  bool fits(const Block& block) const {
    return count < kMost && elems + block.n <= kTile;
  }
  void add(const Block& block) {
    blocks[count++] = block;
    elems += block.n;
  }
  std::span<const Block> all() const {
    return {blocks.data(), count};
  }
};

// Calls body(span of blocks) for all blocks, in order, with as many together as
// fit into a tile. A longer block comes alone.
template <class Format, class Body>
HWY_INLINE void each_group(
    std::span<const Segment> segments, std::int64_t size, const Body& body) {
  Blocks group;
  each_block<Format>(segments, size, [&](const Block& block) HWY_ATTR {
    if (group.count > 0 && !group.fits(block)) {
      body(group.all());
      group.count = 0;
      group.elems = 0;
    }
    group.add(block);
  });
  if (group.count > 0) {
    body(group.all());
  }
}

template <class Format>
HWY_INLINE void put_scale(
    const typename Format::Scale& scale, std::uint8_t* out) {
  if constexpr (Format::kScaleBytes > 0) {
    static_assert(sizeof(scale) == Format::kScaleBytes);
    std::memcpy(out, &scale, Format::kScaleBytes);
  }
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

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
