#include "gradwire/codec/layout.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/expect.h"

namespace gradwire::codec {
namespace {

// All runs in order, neighbours of one parameter joined again.
Segments joined(const std::vector<Segments>& parts) {
  Segments result;
  for (const Segments& part : parts) {
    for (const Segment& segment : part) {
      if (!result.empty() && result.back().stream == segment.stream &&
          result.back().first + result.back().elems == segment.first) {
        result.back().elems += segment.elems;
      } else {
        result.push_back(segment);
      }
    }
  }
  return result;
}

TEST(Split, KeepsAllElementsInOrder) {
  const Segments segments{
      {1000, 1, 0}, {3, 2, 0}, {64, 3, 0}, {5000, 4, 640}, {1, 5, 0}};
  for (const std::int64_t block : {1, 32, 64, 512}) {
    for (const std::int64_t parts : {1, 2, 3, 4, 7, 100}) {
      const auto result = split(segments, block, parts);
      EXPECT_EQ(result.size(), static_cast<std::size_t>(parts));
      EXPECT_EQ(joined(result), segments) << block << " " << parts;
    }
  }
}

TEST(Split, CutsBetweenBlocksNearTheEqualShares) {
  const Segments segments{
      {1000, 1, 0}, {3, 2, 0}, {300, 3, 0}, {64, 4, 0}, {5000, 5, 1024}};
  const std::int64_t total = count_elems(segments);
  for (const std::int64_t block : {1, 32, 512}) {
    for (const std::int64_t parts : {2, 3, 4, 7}) {
      const auto result = split(segments, block, parts);
      std::int64_t end = 0;
      for (std::size_t k = 0; k < result.size(); ++k) {
        for (const Segment& segment : result[k]) {
          EXPECT_GT(segment.elems, 0);
          EXPECT_EQ(
              (segment.first - (segment.stream == 5 ? 1024 : 0)) % block, 0);
        }
        end += count_elems(result[k]);
        const std::int64_t share =
            total * static_cast<std::int64_t>(k + 1) / parts;
        EXPECT_LE(std::abs(end - share), block / 2 + 1);
      }
      EXPECT_EQ(end, total);
    }
  }
}

// A segment that is shorter than a block ends where a cut may be, too.
TEST(Split, CutsAtTheNearestPlace) {
  const Segments segments{{300, 1, 0}, {100, 2, 0}};
  const auto parts = split(segments, 512, 2);
  EXPECT_EQ(parts[0], (Segments{{300, 1, 0}}));
  EXPECT_EQ(parts[1], (Segments{{100, 2, 0}}));
}

TEST(Split, MorePartsThanBlocks) {
  const auto result = split(Segments{{1025, 1, 0}}, 512, 8);
  ASSERT_EQ(result.size(), 8u);
  std::size_t used = 0;
  for (const Segments& part : result) {
    used += part.empty() ? 0 : 1;
  }
  EXPECT_EQ(used, 3u);
  EXPECT_EQ(joined(result), (Segments{{1025, 1, 0}}));
}

TEST(Split, NothingToSplit) {
  for (const Segments& segments : {Segments{}, Segments{{0, 1, 0}}}) {
    const auto result = split(segments, 512, 3);
    EXPECT_EQ(result, std::vector<Segments>(3));
  }
}

TEST(Split, ErrorsNameWhatTheyGot) {
  EXPECT_ERROR(
      Error, split(Segments{}, 0, 3), "[gradwire.codec]", "block 0", "3 parts");
  EXPECT_ERROR(Error, split(Segments{}, 512, 0), "block 512 and 0 parts");
}

}  // namespace
}  // namespace gradwire::codec
