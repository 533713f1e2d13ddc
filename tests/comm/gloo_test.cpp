#include "gradwire/comm/gloo.h"

#include <gtest/gtest.h>

namespace gradwire::gloo {
namespace {

std::int64_t sum_over_ranks(int world, std::int64_t elems) {
  std::int64_t sum = 0;
  for (int rank = 0; rank < world; ++rank) {
    sum += all_reduce_bytes(rank, world, elems, 4);
  }
  return sum;
}

// Whatever the rounding to chunks does to single ranks, together they send
// every element W-1 times in each of the two phases.
TEST(GlooBytes, RingAllReduceSumsToTwoTimesWorldMinusOne) {
  for (const int world : {2, 3, 4, 7, 8, 16}) {
    for (const std::int64_t elems : {1, 2, 7, 13, 1000, 1 << 20, 6301450}) {
      EXPECT_EQ(sum_over_ranks(world, elems), 2 * (world - 1) * elems * 4)
          << world << " ranks, " << elems << " elements";
    }
  }
}

TEST(GlooBytes, RingAllReduceOfEvenChunks) {
  // 16 elements at W=4: each rank sends three of four chunks, twice.
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(all_reduce_bytes(rank, 4, 16, 4), 2 * 3 * 4 * 4);
  }
  EXPECT_EQ(all_reduce_bytes(0, 1, 100, 4), 0);
  EXPECT_EQ(all_reduce_bytes(0, 4, 0, 4), 0);
}

TEST(GlooBytes, BroadcastTreeSendsWorldMinusOneCopies) {
  for (const int world : {1, 2, 3, 4, 5, 8, 13}) {
    for (int root = 0; root < world; ++root) {
      std::int64_t sum = 0;
      for (int rank = 0; rank < world; ++rank) {
        sum += broadcast_bytes(rank, world, root, 10);
      }
      EXPECT_EQ(sum, (world - 1) * 10);
    }
  }
  // The root of eight has three children, its last child none.
  EXPECT_EQ(broadcast_bytes(2, 8, 2, 10), 30);
  EXPECT_EQ(broadcast_bytes(1, 8, 2, 10), 0);
}

}  // namespace
}  // namespace gradwire::gloo
