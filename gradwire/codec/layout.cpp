#include "gradwire/codec/layout.h"

#include <algorithm>

#include "gradwire/base/error.h"

namespace gradwire::codec {
namespace {

// Where parts begin and end, in elements from the start of all segments: equal
// shares, moved to the nearest place between two blocks.
std::vector<std::int64_t> find_cuts(
    std::span<const Segment> segments, std::int64_t block, std::int64_t parts) {
  const std::int64_t total = count_elems(segments);
  std::vector<std::int64_t> cuts{0};
  std::size_t segment = 0;
  std::int64_t begin = 0;
  for (std::int64_t part = 1; part < parts; ++part) {
    const std::int64_t wanted =
        total / parts * part + total % parts * part / parts;
    while (segment < segments.size() &&
           begin + segments[segment].elems < wanted) {
      begin += segments[segment++].elems;
    }
    const std::int64_t elems =
        segment < segments.size() ? segments[segment].elems : 0;
    const std::int64_t low = (wanted - begin) / block * block;
    const std::int64_t high = std::min(low + block, elems);
    const std::int64_t inside = wanted - begin;
    cuts.push_back(begin + (inside - low < high - inside ? low : high));
  }
  cuts.push_back(total);
  return cuts;
}

}  // namespace

std::int64_t count_elems(std::span<const Segment> segments) {
  std::int64_t elems = 0;
  for (const auto& segment : segments) {
    elems += segment.elems;
  }
  return elems;
}

std::int64_t count_blocks(
    std::span<const Segment> segments, std::int64_t block) {
  std::int64_t blocks = 0;
  for (const auto& segment : segments) {
    blocks += segment.elems / block + (segment.elems % block > 0);
  }
  return blocks;
}

std::vector<Segments> split(
    std::span<const Segment> segments, std::int64_t block, std::int64_t parts) {
  if (block < 1 || parts < 1) {
    fail("codec", "split got block ", block, " and ", parts, " parts");
  }
  const std::vector<std::int64_t> cuts = find_cuts(segments, block, parts);
  std::vector<Segments> result(static_cast<std::size_t>(parts));
  std::size_t part = 0;
  std::int64_t begin = 0;
  for (const Segment& segment : segments) {
    const std::int64_t end = begin + segment.elems;
    for (std::int64_t at = begin; at < end;) {
      while (cuts[part + 1] <= at) {
        ++part;
      }
      const std::int64_t stop = std::min(end, cuts[part + 1]);
      result[part].push_back(
          {stop - at, segment.stream, segment.first + (at - begin)});
      at = stop;
    }
    begin = end;
  }
  return result;
}

}  // namespace gradwire::codec
