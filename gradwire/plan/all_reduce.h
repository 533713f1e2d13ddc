#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/base/bytes.h"

// Who sends which message to whom in a compressed all-reduce. Pure arithmetic:
// ranks that are given the same numbers make plans that fit together.
//
// The elements go in chunks, a chunk in shards, and a shard is one message. A
// shard has an owner: every rank sends its encoding of the shard to the owner,
// the owner adds up and sends the encoded sum to all. A pair of ranks does
// without owners: both send each other everything and add up themselves, which
// takes as many bytes, one transfer and one encoding less.
namespace gradwire::plan {

// Whether shards have owners in a world of this size.
bool has_owners(int world);

// Into how many chunks to cut elements that take so many bytes when encoded.
std::int64_t count_chunks(int world, std::int64_t encoded_bytes);

// Who owns the shards of one chunk after another: every rank has its turn. A
// chunk of fewer blocks than ranks has as many shards as blocks, and the next
// chunk goes on with the ranks behind; otherwise every rank owns one shard, and
// the first one is the next rank's. So shares of several chunks are equal, but
// for a shard and the rounding of shards to blocks, and a rank sends about
// 2(W-1)/W of the encoded elements.
class Owners {
 public:
  // `start`: any number that is equal on all ranks, to begin with another rank
  // for other elements.
  Owners(int world, std::uint64_t start);

  // Of the next chunk's shards; of the one shard of a pair nobody is.
  std::vector<int> next(std::int64_t blocks);

 private:
  int world_;
  int first_;
};

// The owner of what all ranks add up for themselves.
inline constexpr int kNobody = -1;

// The buffers of a chunk on one rank.
enum class Buffer {
  // What this rank encodes, by owner.
  kEncoded,
  // What the other ranks have encoded of this rank's shard, by sender.
  kIncoming,
  // The sum of this rank's shard, once for each other rank: what goes to
  // different ranks lies in different places.
  kReduced,
  // The sums of the other ranks' shards, by owner.
  kGathered
};
inline constexpr std::size_t kBuffers = 4;

// Bytes of a buffer: a message, or several that follow each other.
struct Place {
  Buffer buffer = Buffer::kEncoded;
  std::int64_t first = 0;
  std::int64_t bytes = 0;

  friend bool operator==(const Place&, const Place&) = default;
};

// One half of a transfer: what goes to higher ranks, or what goes to lower
// ones. The halves take connections of their own: a receiver tells the sender
// that it is ready, and on connections that carry data both ways this word
// would wait behind all that is on its way already.
struct Direction {
  Place output;
  Place input;
  // By rank.
  std::vector<std::int64_t> output_bytes;
  std::vector<std::int64_t> input_bytes;
  // Of the input.
  std::int64_t metadata_bytes = 0;
};
// To higher ranks, and to lower ones.
using Transfer = std::array<Direction, 2>;

struct Shard {
  // This rank's encoding of it.
  Place encoded;
  // What is decoded and added up, in this order, for its elements.
  std::vector<Place> result;
};

// The shard that a rank owns.
struct OwnShard {
  std::size_t shard = 0;
  // One message a rank, in the order of ranks.
  std::vector<Place> inputs = {};
  // Where the encoded sum goes to; the same bytes in every place.
  std::vector<Place> sums = {};
};

// One rank's part in one chunk.
struct Chunk {
  std::array<std::int64_t, kBuffers> buffer_bytes{};
  // In the order of the elements.
  std::vector<Shard> shards;
  // Added up and encoded between the two transfers. None with two ranks, or
  // where others own all shards.
  std::optional<OwnShard> own;
  // To the owners, and with the sums back to all; one with two ranks.
  std::vector<Transfer> transfers;
};

// `messages`: the sizes of the shards' messages; `owners`: from Owners::next().
Chunk plan_chunk(
    int rank,
    int world,
    const std::vector<Bytes>& messages,
    const std::vector<int>& owners);

}  // namespace gradwire::plan
