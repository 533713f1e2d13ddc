#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gradwire::codec {

// A run of consecutive elements of one parameter. Each segment starts a new
// block, and rounding noise depends on the parameter and the place in it. So
// the result for an element does not depend on its bucket.
struct Segment {
  std::int64_t elems = 0;
  // Which parameter, as a fingerprint of its name.
  std::uint64_t stream = 0;
  // Where in the parameter the run begins; a multiple of the block size.
  std::int64_t first = 0;

  friend bool operator==(const Segment&, const Segment&) = default;
};

using Segments = std::vector<Segment>;

std::int64_t count_elems(std::span<const Segment> segments);
// Of `block` elements or what is left of a segment.
std::int64_t count_blocks(
    std::span<const Segment> segments, std::int64_t block);

// Cuts the elements into `parts` runs of nearly equal length, one after
// another. Cuts fall between blocks of `block` elements; some parts may be
// empty.
std::vector<Segments> split(
    std::span<const Segment> segments, std::int64_t block, std::int64_t parts);

}  // namespace gradwire::codec
