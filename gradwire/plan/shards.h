#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Who owns which elements of some tensors, and in which messages owners send
// them to all. Pure arithmetic: ranks that are given the same numbers make the
// same plans.
namespace gradwire::plan {

// Consecutive elements of a tensor, in the order of its memory.
struct Run {
  std::size_t tensor = 0;
  std::int64_t first = 0;
  std::int64_t elems = 0;

  friend bool operator==(const Run&, const Run&) = default;
};

// What each rank owns, in the order of tensors.
using Shards = std::vector<std::vector<Run>>;

struct TensorSize {
  std::int64_t elems = 0;
  std::int64_t elem_bytes = 0;
};

// Deals out tensors. What it has dealt out stays where it is when more tensors
// come, and counts.
class ShardDealer {
 public:
  // Tensors are cut between blocks of `cut` elements, or not at all for 0.
  ShardDealer(int world, std::int64_t cut);

  // Small tensors, each a fraction of a rank's share, go whole to the rank that
  // has least so far, the largest first. Then large ones are cut in such a way
  // that ranks have equal shares, but for a block. Every tensor has an owner,
  // one without elements too. Tensors in the result are counted from `first`.
  Shards deal(const std::vector<TensorSize>& tensors, std::size_t first = 0);

  // Bytes of each rank's elements.
  const std::vector<std::int64_t>& loads() const {
    return loads_;
  }

 private:
  std::size_t least_loaded() const;
  bool stays_whole(const TensorSize& tensor, std::int64_t all_bytes) const;
  std::vector<std::int64_t> deal_blocks(const TensorSize& tensor);

  std::int64_t world_;
  std::int64_t cut_;
  std::vector<std::int64_t> loads_;
};

// What ranks send in one message each.
using Round = Shards;

// Cuts what each rank owns into messages of at most `most_bytes`, or of one
// block of `cut` elements where that is more; the first messages of all ranks
// are the first round. `elem_bytes`: of each tensor.
std::vector<Round> plan_rounds(
    const Shards& shards,
    const std::vector<std::int64_t>& elem_bytes,
    std::int64_t cut,
    std::int64_t most_bytes);

}  // namespace gradwire::plan
