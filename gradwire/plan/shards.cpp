#include "gradwire/plan/shards.h"

#include <algorithm>
#include <numeric>

#include "gradwire/base/error.h"

namespace gradwire::plan {
namespace {

// What part of a rank's share a tensor may be and yet stay whole. Cutting it
// would make every rank's step longer by a small operation.
constexpr std::int64_t kSmall = 32;

std::int64_t bytes_of(const TensorSize& tensor) {
  return tensor.elems * tensor.elem_bytes;
}

}  // namespace

ShardDealer::ShardDealer(int world, std::int64_t cut)
    : world_(world), cut_(cut), loads_(static_cast<std::size_t>(world)) {}

std::size_t ShardDealer::least_loaded() const {
  return static_cast<std::size_t>(
      std::ranges::min_element(loads_) - loads_.begin());
}

bool ShardDealer::stays_whole(
    const TensorSize& tensor, std::int64_t all_bytes) const {
  return cut_ == 0 || tensor.elems < cut_ * world_ ||
         bytes_of(tensor) <= all_bytes / world_ / kSmall;
}

// How many elements each rank gets, so that loads become as equal as can be.
std::vector<std::int64_t> ShardDealer::deal_blocks(const TensorSize& tensor) {
  const std::int64_t blocks = (tensor.elems + cut_ - 1) / cut_;
  const std::int64_t block_bytes = cut_ * tensor.elem_bytes;
  const auto blocks_up_to = [&](std::int64_t load, std::int64_t level) {
    return std::max<std::int64_t>(0, (level - load) / block_bytes);
  };
  // The highest level that the blocks suffice for.
  std::int64_t level = *std::ranges::min_element(loads_);
  std::int64_t above = level + (blocks + 1) * block_bytes;
  while (above - level > 1) {
    const std::int64_t middle = level + (above - level) / 2;
    std::int64_t needed = 0;
    for (const std::int64_t load : loads_) {
      needed += blocks_up_to(load, middle);
    }
    (needed <= blocks ? level : above) = middle;
  }
  std::vector<std::int64_t> shares;
  std::int64_t left = blocks;
  for (std::int64_t& load : loads_) {
    const std::int64_t count = blocks_up_to(load, level);
    shares.push_back(count * cut_);
    load += count * block_bytes;
    left -= count;
  }
  for (; left > 0; --left) {
    const std::size_t rank = least_loaded();
    shares[rank] += cut_;
    loads_[rank] += block_bytes;
  }
  // The last block may be shorter.
  std::int64_t over = blocks * cut_ - tensor.elems;
  for (std::size_t rank = shares.size(); over > 0;) {
    if (shares[--rank] > 0) {
      shares[rank] -= over;
      loads_[rank] -= over * tensor.elem_bytes;
      over = 0;
    }
  }
  return shares;
}

Shards ShardDealer::deal(
    const std::vector<TensorSize>& tensors, std::size_t first) {
  std::int64_t all = std::accumulate(loads_.begin(), loads_.end(), 0L);
  for (const TensorSize& tensor : tensors) {
    all += bytes_of(tensor);
  }
  std::vector<std::size_t> small;
  std::vector<std::size_t> large;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    (stays_whole(tensors[i], all) ? small : large).push_back(i);
  }
  std::ranges::stable_sort(small, std::ranges::greater{}, [&](std::size_t i) {
    return bytes_of(tensors[i]);
  });
  Shards shards(loads_.size());
  for (const std::size_t i : small) {
    const std::size_t rank = least_loaded();
    shards[rank].push_back({first + i, 0, tensors[i].elems});
    loads_[rank] += bytes_of(tensors[i]);
  }
  for (const std::size_t i : large) {
    std::int64_t begin = 0;
    const auto shares = deal_blocks(tensors[i]);
    for (std::size_t rank = 0; rank < shares.size(); ++rank) {
      if (shares[rank] > 0) {
        shards[rank].push_back({first + i, begin, shares[rank]});
      }
      begin += shares[rank];
    }
  }
  for (auto& runs : shards) {
    std::ranges::sort(runs, {}, &Run::tensor);
  }
  return shards;
}

std::vector<Round> plan_rounds(
    const Shards& shards,
    const std::vector<std::int64_t>& elem_bytes,
    std::int64_t cut,
    std::int64_t most_bytes) {
  if (cut < 1) {
    fail("plan", "rounds got blocks of ", cut, " elements, expected 1 or more");
  }
  std::vector<Round> rounds;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    std::size_t round = 0;
    std::int64_t room = most_bytes;
    for (Run run : shards[rank]) {
      const std::int64_t block = cut * elem_bytes.at(run.tensor);
      while (run.elems > 0) {
        if (room < block && room < most_bytes) {
          ++round;
          room = most_bytes;
        }
        if (rounds.size() <= round) {
          rounds.resize(round + 1, Round(shards.size()));
        }
        const std::int64_t fits = std::max<std::int64_t>(room / block, 1) * cut;
        const std::int64_t elems = std::min(run.elems, fits);
        rounds[round][rank].push_back({run.tensor, run.first, elems});
        room -= elems * elem_bytes[run.tensor];
        run.first += elems;
        run.elems -= elems;
      }
    }
  }
  return rounds;
}

}  // namespace gradwire::plan
