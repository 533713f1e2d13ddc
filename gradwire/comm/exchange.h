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
struct ExchangeRun;

// All ranks end with the same bits: (sum over ranks of decode(encode(x))) /
// divisor, encoded once more from three ranks on.
//
// Who sends what to whom is in gradwire/plan/all_reduce.h. Sums are taken in
// fp32, in the order of ranks; what an owner sends to all it decodes as well. A
// rank sends about 2(W-1)/W of the encoded elements, whatever W.
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
    // What the future holds; the values where it is undefined.
    at::Tensor result = {};
    float divisor = 1.0f;
    // For all of the elements; what the second encoding loses stays with the
    // owner of the shard, as part of next_residual.
    codec::Feedback feedback = {};
    // For this rank's encoding, and for the owners', equal on all ranks.
    codec::Noise noise = {};
    codec::Noise owner_noise = {};
    // Set when a result is not finite. May be null.
    std::shared_ptr<std::atomic<bool>> not_finite = {};
    // Where nothing else makes sure that ranks agree: what is asked for, in
    // words. Ranks compare it before they send. Where it differs the future
    // holds an Error that names both, on all ranks, and nothing else happens.
    std::string asked = {};
  };

  Exchange(
      const std::shared_ptr<const codec::Codec>& codec, const Layout& layout);
  ~Exchange();
  Exchange(const Exchange&) = delete;

  // Returns at once. All ranks submit the same exchanges in the same order.
  Future start(Lane& lane, Use use);
  // The last use has ended, well or not, or there was none.
  bool idle() const;
  // What it keeps from use to use, about.
  std::int64_t kept_bytes() const;

 private:
  std::shared_ptr<ExchangeRun> run_;
  std::vector<std::shared_ptr<Chunk>> chunks_;
  // For elements that are not fp32.
  at::Tensor staging_;
  std::int64_t elems_ = 0;
};

}  // namespace gradwire
