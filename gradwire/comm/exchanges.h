#pragma once

// Private to gradwire: what hooks with a codec and compressed_all_reduce share.

#include <cstdint>
#include <limits>
#include <list>
#include <memory>

#include "gradwire/comm/exchange.h"

namespace gradwire {

// The compressed all-reduces of one rank on a lane of exchange_phases(). An
// exchange is planned for the first call with its codec and segments, and used
// again by later ones. Not thread safe; must outlive the lane.
class Exchanges {
 public:
  using CodecPtr = std::shared_ptr<const codec::Codec>;

  // `most_bytes`: exchanges that are not in use are dropped, the one that was
  // not used for longest first, while their buffers together take more. The
  // last one used stays.
  Exchanges(
      const Group& group,
      std::int64_t most_bytes = std::numeric_limits<std::int64_t>::max())
      : rank_(group.rank()), world_(group.size()), most_bytes_(most_bytes) {}

  struct Call {
    CodecPtr codec;
    codec::Segments segments;
    // What noise is drawn from: equal on all ranks, and another one for every
    // call on the same elements.
    std::uint64_t number = 0;
  };
  // Returns at once. All ranks make the same calls in the same order.
  Future start(Lane& lane, const Call& call, Exchange::Use use);

  // Segments will be others from now on: drops exchanges.
  void clear() {
    kept_.clear();
  }

 private:
  struct Kept {
    CodecPtr codec;
    codec::Segments segments;
    std::unique_ptr<Exchange> exchange;
  };

  Exchange& find_or_plan(const Call& call);
  void drop_unused();

  int rank_;
  int world_;
  std::int64_t most_bytes_;
  // The last one used first.
  std::list<Kept> kept_;
};

}  // namespace gradwire
