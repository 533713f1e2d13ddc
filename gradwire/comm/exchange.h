#pragma once

// Private to gradwire: a compressed all-reduce of one layout of elements.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

#include "gradwire/codec/codec.h"
#include "gradwire/comm/future.h"
#include "gradwire/comm/lane.h"

namespace gradwire {

// The phases a lane for exchanges needs in a world of this size.
std::vector<Lane::Phase> exchange_phases(int world);

class Chunk;

// All ranks end with the same bits: (sum over ranks of decode(encode(x))) /
// divisor, encoded once more from three ranks on.
//
// Elements go in chunks, a chunk in one shard a rank. Every rank sends each
// shard, encoded, to its owner; the owner adds up in rank order, in fp32, and
// encodes the result once; all-gathered and decoded it replaces the elements on
// every rank, the owner included. With two ranks both send each other
// everything and add up themselves: as many bytes, one encoding less. Either
// way a rank sends about 2(W-1)/W of the encoded elements, whatever W.
//
// Made once for a layout and used again and again; buffers are kept. One use at
// a time. Not thread safe.
class Exchange {
 public:
  struct Layout {
    int rank = 0;
    int world = 2;
    codec::Segments segments;
  };
  struct Use {
    // Contiguous, floating, as many elements as the layout; replaced.
    at::Tensor values;
    float divisor = 1.0f;
    // For all of the elements; what the second encoding loses stays with the
    // owner of the shard, as part of next_residual.
    codec::Feedback feedback = {};
    // For this rank's encoding, and for the owners', equal on all ranks.
    codec::Noise noise = {};
    codec::Noise owner_noise = {};
    // Set when a result is not finite. May be null.
    std::shared_ptr<std::atomic<bool>> not_finite = {};
  };

  Exchange(std::shared_ptr<const codec::Codec> codec, const Layout& layout);
  ~Exchange();
  Exchange(const Exchange&) = delete;

  // Returns at once. All ranks submit the same exchanges in the same order.
  Future start(Lane& lane, Use use);
  // The last use has ended, well or not, or there was none.
  bool idle() const;

 private:
  std::vector<std::shared_ptr<Chunk>> chunks_;
  // For elements that are not fp32.
  at::Tensor staging_;
  std::int64_t elems_ = 0;
  Future last_;
};

}  // namespace gradwire
