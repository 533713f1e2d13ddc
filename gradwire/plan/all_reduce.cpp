#include "gradwire/plan/all_reduce.h"

#include <algorithm>
#include <numeric>

#include "gradwire/base/error.h"

namespace gradwire::plan {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// What one side of a transfer has to do with each rank; nothing with itself.
struct Side {
  Buffer buffer;
  Counts bytes;
};

class Planner {
 public:
  Planner(int rank, int world, const std::vector<Bytes>& messages)
      : rank_(rank), world_(world), messages_(messages) {}

  Chunk pair() {
    const int peer = 1 - rank_;
    const std::int64_t bytes = messages_[0].total();
    const Place ours{Buffer::kEncoded, 0, bytes};
    const Place theirs{Buffer::kIncoming, 0, bytes};
    set_buffer(Buffer::kEncoded, bytes);
    set_buffer(Buffer::kIncoming, bytes);
    chunk_.shards.push_back({ours, {ours, theirs}});
    if (rank_ == 1) {
      std::ranges::reverse(chunk_.shards[0].result);
    }
    Counts counts(2);
    counts[peer] = bytes;
    Counts metadata(2);
    metadata[peer] = messages_[0].metadata;
    add_transfer(
        {Buffer::kIncoming, counts}, {Buffer::kEncoded, counts}, metadata);
    return std::move(chunk_);
  }

  Chunk with_owners(const std::vector<int>& owners) {
    by_owner_.resize(world_, kNone);
    for (std::size_t i = 0; i < owners.size(); ++i) {
      by_owner_.at(owners[i]) = i;
    }
    const Bytes mine = message_of(rank_);
    Counts theirs(world_);
    Counts their_metadata(world_);
    Counts ours(world_, mine.total());
    Counts our_metadata(world_, mine.metadata);
    for (int owner = 0; owner < world_; ++owner) {
      theirs[owner] = message_of(owner).total();
      their_metadata[owner] = message_of(owner).metadata;
    }
    for (Counts* counts : {&theirs, &their_metadata, &ours, &our_metadata}) {
      (*counts)[rank_] = 0;
    }
    set_buffer(Buffer::kEncoded, total(theirs) + mine.total());
    set_buffer(Buffer::kIncoming, total(ours));
    set_buffer(Buffer::kReduced, total(ours));
    set_buffer(Buffer::kGathered, total(theirs));
    place_shards();
    if (by_owner_[rank_] != kNone) {
      place_own();
    }
    add_transfer(
        {Buffer::kIncoming, ours}, {Buffer::kEncoded, theirs}, their_metadata);
    add_transfer(
        {Buffer::kGathered, theirs}, {Buffer::kReduced, ours}, our_metadata);
    return std::move(chunk_);
  }

 private:
  void set_buffer(Buffer buffer, std::int64_t bytes) {
    chunk_.buffer_bytes[static_cast<std::size_t>(buffer)] = bytes;
  }

  // What a rank owns; nothing where it owns none.
  Bytes message_of(int owner) const {
    const std::size_t shard = by_owner_[owner];
    return shard == kNone ? Bytes{} : messages_[shard];
  }

  void place_shards() {
    chunk_.shards.resize(messages_.size());
    std::int64_t encoded = 0;
    std::int64_t gathered = 0;
    for (int owner = 0; owner < world_; ++owner) {
      if (by_owner_[owner] == kNone) {
        continue;
      }
      const std::int64_t bytes = message_of(owner).total();
      const bool own = owner == rank_;
      const Place result = own ? Place{Buffer::kReduced, 0, bytes}
                               : Place{Buffer::kGathered, gathered, bytes};
      chunk_.shards[by_owner_[owner]] = {
          {Buffer::kEncoded, encoded, bytes}, {result}};
      encoded += bytes;
      gathered += own ? 0 : bytes;
    }
  }

  void place_own() {
    OwnShard own{.shard = by_owner_[rank_]};
    const std::int64_t bytes = messages_[own.shard].total();
    std::int64_t at = 0;
    for (int rank = 0; rank < world_; ++rank) {
      if (rank == rank_) {
        own.inputs.push_back(chunk_.shards[own.shard].encoded);
        continue;
      }
      own.inputs.push_back({Buffer::kIncoming, at, bytes});
      own.sums.push_back({Buffer::kReduced, at, bytes});
      at += bytes;
    }
    chunk_.own = std::move(own);
  }

  // Lower ranks are first in a buffer and higher ones last; what is this rank's
  // own may lie between.
  void add_transfer(
      const Side& output, const Side& input, const Counts& metadata) {
    chunk_.transfers.push_back(
        {Direction{
             .output = first_of(output),
             .input = last_of(input),
             .output_bytes = lower(output.bytes),
             .input_bytes = higher(input.bytes),
             .metadata_bytes = total(higher(metadata))},
         Direction{
             .output = last_of(output),
             .input = first_of(input),
             .output_bytes = higher(output.bytes),
             .input_bytes = lower(input.bytes),
             .metadata_bytes = total(lower(metadata))}});
  }

  Place first_of(const Side& side) const {
    return {side.buffer, 0, total(lower(side.bytes))};
  }
  Place last_of(const Side& side) const {
    const std::int64_t bytes = total(higher(side.bytes));
    const auto buffer = static_cast<std::size_t>(side.buffer);
    return {side.buffer, chunk_.buffer_bytes[buffer] - bytes, bytes};
  }
  Counts lower(Counts counts) const {
    std::fill(counts.begin() + rank_, counts.end(), 0);
    return counts;
  }
  Counts higher(Counts counts) const {
    std::fill(counts.begin(), counts.begin() + rank_, 0);
    return counts;
  }

  static constexpr auto kNone = static_cast<std::size_t>(-1);

  int rank_;
  int world_;
  const std::vector<Bytes>& messages_;
  // The shard that a rank owns.
  std::vector<std::size_t> by_owner_;
  Chunk chunk_;
};

}  // namespace

bool has_owners(int world) {
  return world != 2;
}

// Encoded: small enough for phases to overlap, big enough to be worth the
// wake-ups that a chunk costs. A pair has one transfer and less to overlap.
std::int64_t count_chunks(int world, std::int64_t encoded_bytes) {
  constexpr std::int64_t kMebi = 1 << 20;
  const std::int64_t wanted = has_owners(world) ? kMebi : 4 * kMebi;
  return std::max<std::int64_t>(1, (encoded_bytes + wanted / 2) / wanted);
}

Owners::Owners(int world, std::uint64_t start)
    : world_(world), first_(static_cast<int>(start % world)) {}

std::vector<int> Owners::next(std::int64_t blocks) {
  if (!has_owners(world_)) {
    return {kNobody};
  }
  const auto shards =
      static_cast<int>(std::clamp<std::int64_t>(blocks, 1, world_));
  std::vector<int> owners;
  owners.reserve(static_cast<std::size_t>(shards));
  for (int i = 0; i < shards; ++i) {
    owners.push_back((first_ + i) % world_);
  }
  first_ = (first_ + (shards < world_ ? shards : 1)) % world_;
  return owners;
}

Chunk plan_chunk(
    int rank,
    int world,
    const std::vector<Bytes>& messages,
    const std::vector<int>& owners) {
  if (rank < 0 || rank >= world || messages.size() != owners.size()) {
    fail(
        "plan",
        "a chunk got ",
        messages.size(),
        " messages of ",
        owners.size(),
        " owners for rank ",
        rank,
        " of ",
        world);
  }
  Planner planner(rank, world, messages);
  return has_owners(world) ? planner.with_owners(owners) : planner.pair();
}

}  // namespace gradwire::plan
