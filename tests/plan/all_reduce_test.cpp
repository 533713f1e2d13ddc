#include "gradwire/plan/all_reduce.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/expect.h"

namespace gradwire::plan {
namespace {

using Counts = std::vector<std::int64_t>;

// What a byte of a buffer holds: one of a message of a shard, encoded by a rank
// or, once the owner has added up, by kSum.
struct Cell {
  int shard = -1;
  int encoder = -1;
  std::int64_t byte = -1;

  friend bool operator==(const Cell&, const Cell&) = default;
};
constexpr int kSum = 100;

// Ranks that follow their plans.
class Ranks {
 public:
  Ranks(
      int world,
      const std::vector<Bytes>& messages,
      const std::vector<int>& owners)
      : messages_(messages), owners_(owners) {
    for (int rank = 0; rank < world; ++rank) {
      plans_.push_back(plan_chunk(rank, world, messages, owners));
      auto& buffers = buffers_.emplace_back();
      for (std::size_t i = 0; i < kBuffers; ++i) {
        buffers[i].resize(plans_.back().buffer_bytes[i]);
      }
    }
  }

  void encode() {
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      for (std::size_t i = 0; i < plans_[rank].shards.size(); ++i) {
        const auto& shard = plans_[rank].shards[i];
        EXPECT_EQ(shard.encoded.bytes, messages_[i].total());
        write(rank, shard.encoded, static_cast<int>(i), static_cast<int>(rank));
      }
    }
  }

  // All halves of a transfer, as all-to-alls.
  void transfer(std::size_t number) {
    for (std::size_t half = 0; half < 2; ++half) {
      for (std::size_t from = 0; from < plans_.size(); ++from) {
        for (std::size_t to = 0; to < plans_.size(); ++to) {
          send(
              plans_[from].transfers[number][half],
              from,
              plans_[to].transfers[number][half],
              to);
        }
      }
    }
  }

  // Owners find a message of every rank, in the order of ranks.
  void reduce() {
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      const auto& own = plans_[rank].own;
      const auto found = std::ranges::find(owners_, static_cast<int>(rank));
      ASSERT_EQ(own.has_value(), found != owners_.end());
      if (!own) {
        continue;
      }
      EXPECT_EQ(own->shard, static_cast<std::size_t>(found - owners_.begin()));
      ASSERT_EQ(own->inputs.size(), plans_.size());
      for (std::size_t i = 0; i < own->inputs.size(); ++i) {
        expect(rank, own->inputs[i], own->shard, static_cast<int>(i));
      }
      for (const Place& place : own->sums) {
        write(rank, place, static_cast<int>(own->shard), kSum);
      }
    }
  }

  // All ranks find the encodings by `encoders` of every shard.
  void expect_results(const std::vector<int>& encoders) {
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      for (std::size_t i = 0; i < plans_[rank].shards.size(); ++i) {
        const auto& result = plans_[rank].shards[i].result;
        ASSERT_EQ(result.size(), encoders.size());
        for (std::size_t k = 0; k < encoders.size(); ++k) {
          expect(rank, result[k], i, encoders[k]);
        }
      }
    }
  }

  Bytes sent_by(std::size_t rank) const {
    Bytes sent;
    for (const Transfer& transfer : plans_[rank].transfers) {
      for (const Direction& half : transfer) {
        sent.payload += half.input.bytes - half.metadata_bytes;
        sent.metadata += half.metadata_bytes;
      }
    }
    return sent;
  }

 private:
  std::vector<Cell>& buffer(std::size_t rank, const Place& place) {
    return buffers_[rank][static_cast<std::size_t>(place.buffer)];
  }

  void write(std::size_t rank, const Place& place, int shard, int encoder) {
    for (std::int64_t i = 0; i < place.bytes; ++i) {
      buffer(rank, place).at(place.first + i) = {shard, encoder, i};
    }
  }

  void expect(
      std::size_t rank, const Place& place, std::size_t shard, int encoder) {
    EXPECT_EQ(place.bytes, messages_[shard].total());
    for (std::int64_t i = 0; i < place.bytes; ++i) {
      EXPECT_EQ(
          buffer(rank, place).at(place.first + i),
          (Cell{static_cast<int>(shard), encoder, i}));
    }
  }

  static std::int64_t sum(const Counts& counts, std::size_t end) {
    std::int64_t result = 0;
    for (std::size_t i = 0; i < end; ++i) {
      result += counts[i];
    }
    return result;
  }

  void send(
      const Direction& sender,
      std::size_t from,
      const Direction& receiver,
      std::size_t to) {
    ASSERT_EQ(sum(sender.input_bytes, plans_.size()), sender.input.bytes);
    ASSERT_EQ(sum(receiver.output_bytes, plans_.size()), receiver.output.bytes);
    const std::int64_t bytes = sender.input_bytes[to];
    ASSERT_EQ(bytes, receiver.output_bytes[from]);
    EXPECT_TRUE(bytes == 0 || from != to);
    const std::int64_t source =
        sender.input.first + sum(sender.input_bytes, to);
    const std::int64_t target =
        receiver.output.first + sum(receiver.output_bytes, from);
    for (std::int64_t i = 0; i < bytes; ++i) {
      buffer(to, receiver.output).at(target + i) =
          buffer(from, sender.input).at(source + i);
    }
  }

  std::vector<Bytes> messages_;
  std::vector<int> owners_;
  std::vector<Chunk> plans_;
  std::vector<std::array<std::vector<Cell>, kBuffers>> buffers_;
};

TEST(AllReducePlan, APairExchangesEverything) {
  const std::vector<Bytes> all{{.payload = 100, .metadata = 20}};
  Ranks ranks(2, all, {kNobody});
  ranks.encode();
  ranks.transfer(0);
  // Both add up in the order of ranks.
  ranks.expect_results({0, 1});
  EXPECT_EQ(ranks.sent_by(0), all[0]);
  EXPECT_EQ(ranks.sent_by(1), all[0]);
  for (const int rank : {0, 1}) {
    const Chunk plan = plan_chunk(rank, 2, all, {kNobody});
    EXPECT_FALSE(plan.own);
    EXPECT_EQ(plan.transfers.size(), 1u);
  }
}

TEST(AllReducePlan, OwnersGetAndSendTheirShards) {
  for (const int world : {3, 4, 5, 8}) {
    for (const int shards : {1, world - 1, world}) {
      for (const int first : {0, 2}) {
        std::vector<Bytes> messages;
        std::vector<int> owners;
        Bytes all;
        for (int i = 0; i < shards; ++i) {
          // Empty ones too.
          messages.push_back({.payload = 7 * (i % 3), .metadata = 2 + i % 2});
          owners.push_back((first + i) % world);
          all = all + messages.back();
        }
        Ranks ranks(world, messages, owners);
        ranks.encode();
        ranks.transfer(0);
        ranks.reduce();
        ranks.transfer(1);
        ranks.expect_results({kSum});
        for (int rank = 0; rank < world; ++rank) {
          const int shard = (rank - first + world) % world;
          const Bytes own = shard < shards ? messages[shard] : Bytes{};
          Bytes expected = all - own;
          for (int i = 1; i < world; ++i) {
            expected = expected + own;
          }
          EXPECT_EQ(ranks.sent_by(rank), expected) << rank << " of " << world;
        }
      }
    }
  }
}

TEST(AllReducePlan, OwnersTakeTurns) {
  Owners many(3, 4);
  EXPECT_EQ(many.next(100), (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(many.next(3), (std::vector<int>{2, 0, 1}));
  EXPECT_EQ(many.next(2), (std::vector<int>{0, 1}));
  EXPECT_EQ(many.next(1), (std::vector<int>{2}));
  EXPECT_EQ(many.next(0), (std::vector<int>{0}));
  Owners pair(2, 7);
  EXPECT_EQ(pair.next(100), (std::vector<int>{kNobody}));
  EXPECT_FALSE(has_owners(2));
}

// The most that a rank sends, in parts of 2(W-1)/W of the encoded elements.
double most_sent(int world, const std::vector<std::int64_t>& blocks) {
  Owners owners(world, 5);
  std::vector<std::int64_t> sent(world);
  std::int64_t all = 0;
  for (const std::int64_t count : blocks) {
    const auto of_chunk = owners.next(count);
    std::vector<Bytes> messages;
    for (std::size_t i = 0; i < of_chunk.size(); ++i) {
      // As many blocks as there are, nearly equal shares.
      const auto shards = std::ssize(of_chunk);
      const auto index = static_cast<std::int64_t>(i);
      messages.push_back(
          {.payload =
               1000 * (count * (index + 1) / shards - count * index / shards)});
      all += messages.back().total();
    }
    for (int rank = 0; rank < world; ++rank) {
      for (const auto& transfer :
           plan_chunk(rank, world, messages, of_chunk).transfers) {
        sent[rank] += transfer[0].input.bytes + transfer[1].input.bytes;
      }
    }
  }
  const double share = 2.0 * (world - 1) / world * static_cast<double>(all);
  return static_cast<double>(std::ranges::max(sent)) / share;
}

TEST(AllReducePlan, NoRankSendsMuchMoreThanOthers) {
  struct Row {
    const char* what;
    int world;
    std::vector<std::int64_t> blocks;
    double most;
  };
  const auto same = [](std::size_t chunks, std::int64_t blocks) {
    return std::vector<std::int64_t>(chunks, blocks);
  };
  for (const auto& [what, world, blocks, most] : std::vector<Row>{
           {"int8:block=1048576, 16 M elements", 4, same(16, 1), 1.0},
           {"the same, 9 M elements", 4, same(9, 1), 1.12},
           {"the same, three blocks and one", 4, {1, 1, 1, 1, 3, 1}, 1.17},
           {"int8:block=65536, 16 M elements", 64, same(16, 16), 1.0},
           {"the same, 7 M elements", 64, same(7, 16), 1.08},
           {"a block more than ranks", 4, same(8, 5), 1.0},
           {"the default block", 8, same(4, 2048), 1.0},
           {"two ranks", 2, same(3, 1), 1.0}}) {
    EXPECT_LE(most_sent(world, blocks), most + 1e-9) << what;
  }
}

// Written out for one rank.
TEST(AllReducePlan, RankOneOfThree) {
  const std::vector<Bytes> messages{{8, 2}, {16, 4}, {32, 8}};
  const Chunk plan = plan_chunk(1, 3, messages, {0, 1, 2});
  EXPECT_EQ(
      plan.buffer_bytes, (std::array<std::int64_t, kBuffers>{70, 40, 40, 50}));
  const Direction& up = plan.transfers[0][0];
  EXPECT_EQ(up.input, (Place{Buffer::kEncoded, 30, 40}));
  EXPECT_EQ(up.output, (Place{Buffer::kIncoming, 0, 20}));
  EXPECT_EQ(up.input_bytes, (Counts{0, 0, 40}));
  EXPECT_EQ(up.output_bytes, (Counts{20, 0, 0}));
  EXPECT_EQ(up.metadata_bytes, 8);
  const Direction& down = plan.transfers[0][1];
  EXPECT_EQ(down.input, (Place{Buffer::kEncoded, 0, 10}));
  EXPECT_EQ(down.output, (Place{Buffer::kIncoming, 20, 20}));
  EXPECT_EQ(down.metadata_bytes, 2);
  EXPECT_EQ(plan.shards[1].encoded, (Place{Buffer::kEncoded, 10, 20}));
  EXPECT_EQ(plan.transfers[1][0].input, (Place{Buffer::kReduced, 20, 20}));
  EXPECT_EQ(plan.transfers[1][0].output, (Place{Buffer::kGathered, 0, 10}));
  EXPECT_EQ(plan.transfers[1][1].input, (Place{Buffer::kReduced, 0, 20}));
  EXPECT_EQ(plan.transfers[1][1].output, (Place{Buffer::kGathered, 10, 40}));
}

TEST(AllReducePlan, ChunksAreOfAMebibyteOrFour) {
  struct Row {
    int world;
    std::int64_t bytes;
    std::int64_t chunks;
  };
  constexpr std::int64_t kMebi = 1 << 20;
  for (const auto& [world, bytes, chunks] : std::vector<Row>{
           {3, 0, 1},
           {3, kMebi, 1},
           {3, kMebi + kMebi / 2 - 1, 1},
           {3, kMebi + kMebi / 2, 2},
           {64, 10 * kMebi, 10},
           {2, 4 * kMebi, 1},
           {2, 6 * kMebi, 2}}) {
    EXPECT_EQ(count_chunks(world, bytes), chunks) << world << " " << bytes;
  }
}

TEST(AllReducePlan, WhatDoesNotFitIsAnError) {
  EXPECT_ERROR(
      Error,
      plan_chunk(3, 3, {{}, {}, {}}, {0, 1, 2}),
      "[gradwire.plan]",
      "rank 3 of 3");
  EXPECT_ERROR(
      Error, plan_chunk(0, 3, {{}, {}}, {0}), "got 2 messages of 1 owners");
}

}  // namespace
}  // namespace gradwire::plan
