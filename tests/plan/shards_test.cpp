#include "gradwire/plan/shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/expect.h"

namespace gradwire::plan {
namespace {

// A vision model and a language model, about: large matrices, middling ones and
// many vectors.
std::vector<TensorSize> model(std::int64_t width, int layers) {
  std::vector<TensorSize> tensors{{10 * width * width, 4}};
  for (int i = 0; i < layers; ++i) {
    tensors.push_back({width * width, 4});
    tensors.push_back({width * 10, 4});
    tensors.push_back({width, 4});
    tensors.push_back({1, 4});
  }
  return tensors;
}

using Runs = std::vector<plan::Run>;

// Every element has one owner, and runs of a tensor ascend with ranks.
void expect_all_owned(
    const std::vector<TensorSize>& tensors, const Shards& shards) {
  std::vector<std::int64_t> owned(tensors.size());
  for (const auto& runs : shards) {
    for (const plan::Run& run : runs) {
      EXPECT_EQ(run.first, owned[run.tensor]);
      EXPECT_GT(run.elems, 0);
      owned[run.tensor] += run.elems;
    }
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(owned[i], tensors[i].elems) << "tensor " << i;
  }
}

TEST(Shards, AreEqualWithinFivePercent) {
  for (const int world : {1, 2, 3, 4, 7, 16}) {
    for (const std::int64_t width : {100, 256, 1000}) {
      const auto tensors = model(width, 6);
      ShardDealer dealer(world, 64);
      const Shards shards = dealer.deal(tensors);
      expect_all_owned(tensors, shards);
      const auto& loads = dealer.loads();
      const double share = static_cast<double>(std::accumulate(
                               loads.begin(), loads.end(), std::int64_t{0})) /
                           world;
      EXPECT_LE(
          static_cast<double>(*std::ranges::max_element(loads)), 1.05 * share)
          << world << " ranks, width " << width;
    }
  }
}

TEST(Shards, AreCutBetweenBlocks) {
  ShardDealer dealer(3, 64);
  const Shards shards = dealer.deal({{1000, 4}}, 5);
  EXPECT_EQ(shards, (Shards{{{5, 0, 384}}, {{5, 384, 320}}, {{5, 704, 296}}}));
}

TEST(Shards, AreWholeTensorsWithoutCuts) {
  ShardDealer dealer(2, 0);
  EXPECT_EQ(
      dealer.deal({{10, 4}, {1000, 4}, {600, 4}, {300, 4}, {0, 4}}),
      (Shards{
          {{1, 0, 1000}}, {{0, 0, 10}, {2, 0, 600}, {3, 0, 300}, {4, 0, 0}}}));
}

TEST(Shards, OfMoreTensorsLeaveTheOthersAlone) {
  ShardDealer dealer(2, 0);
  dealer.deal({{100, 4}});
  EXPECT_EQ(
      dealer.deal({{50, 4}, {50, 4}}, 1),
      (Shards{{}, {{1, 0, 50}, {2, 0, 50}}}));
  EXPECT_EQ(dealer.loads(), (std::vector<std::int64_t>{400, 400}));
}

TEST(Rounds, CarryWhatRanksOwnInOrder) {
  const Shards shards{{{0, 0, 1000}, {1, 0, 30}}, {{0, 1000, 100}}, {}};
  const auto rounds = plan_rounds(shards, {4, 8}, 64, 2048);
  ASSERT_EQ(rounds.size(), 3U);
  EXPECT_EQ(rounds[0], (Round{{{0, 0, 512}}, {{0, 1000, 100}}, {}}));
  EXPECT_EQ(rounds[1], (Round{{{0, 512, 488}}, {}, {}}));
  EXPECT_EQ(rounds[2], (Round{{{1, 0, 30}}, {}, {}}));
}

// A block that is larger than a message travels by itself.
TEST(Rounds, CarryABlockAtLeast) {
  const Shards shards{{{0, 0, 100}, {0, 100, 10}}};
  const auto rounds = plan_rounds(shards, {4}, 64, 16);
  ASSERT_EQ(rounds.size(), 3U);
  EXPECT_EQ(rounds[0][0], (Runs{{0, 0, 64}}));
  EXPECT_EQ(rounds[2][0], (Runs{{0, 100, 10}}));
}

TEST(Rounds, AreNoneWhereThereIsNothing) {
  EXPECT_TRUE(plan_rounds({{}, {}}, {}, 64, 1024).empty());
  EXPECT_ERROR(Error, plan_rounds({{}}, {}, 0, 1024), "blocks of 0 elements");
}

}  // namespace
}  // namespace gradwire::plan
