#pragma once

// Private to gradwire: the part of an exchange that passes a lane at a time.

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <vector>

#include "gradwire/codec/codec.h"
#include "gradwire/comm/call_check.h"
#include "gradwire/comm/exchange.h"
#include "gradwire/comm/lane.h"
#include "gradwire/plan/all_reduce.h"

namespace gradwire {

// One use of an exchange, shared by its chunks: the result is complete when
// the last of them has ended, for until then others work on the values.
struct ExchangeRun : Lane::Result {
  Exchange::Use use;
  // Where codecs read and write: the values, or their copy in fp32.
  at::Tensor floats;
  // The first chunk has come to the first phase, whose thread owns this and the
  // check of what ranks ask for.
  bool begun = false;
  CallCheck check;

  void release() noexcept override {
    use = {};
    floats.reset();
  }
};

// Some consecutive elements, planned once: the shards they are cut in, the
// messages that carry them and the buffers for these. Its result is an
// ExchangeRun. One run at a time.
class Chunk : public Lane::Job {
 public:
  // `first`: where the chunk begins among the elements of the exchange. There
  // are as many shards as `owners`.
  Chunk(
      std::shared_ptr<const codec::Codec> codec,
      const Exchange::Layout& layout,
      std::int64_t first,
      const std::vector<int>& owners);

  // What a chunk does among so many ranks.
  static std::span<const Step> steps_in(int world);

  std::span<const Step> steps() const override {
    return steps_;
  }
  std::int64_t buffer_bytes() const;

 private:
  // A run of elements, where its message goes and what it is decoded from.
  struct Shard {
    codec::Segments segments;
    std::int64_t first = 0;
    codec::Codec::Bytes encoded = {};
    std::vector<codec::Codec::ConstBytes> result = {};
  };

  at::Tensor part(const plan::Place& place) const;
  codec::Codec::Bytes bytes(const plan::Place& place) const;
  std::vector<codec::Codec::ConstBytes> bytes(
      const std::vector<plan::Place>& places) const;

  // The steps.
  void send_shards(const Lane::Groups& groups);
  void send_sum(const Lane::Groups& groups);
  void finish(const Lane::Groups& groups);

  void send(const plan::Transfer& transfer, const Lane::Groups& groups);
  void encode();
  void reduce();
  bool decode();
  // Whether this chunk is the one that compares what ranks ask for.
  bool checks() const;
  // Into the type of the values. Whether all of them are finite.
  bool write_back();

  ExchangeRun& run() const {
    return static_cast<ExchangeRun&>(result());
  }
  float* floats(const Shard& shard) const;
  codec::Feedback feedback(const Shard& shard) const;

  std::shared_ptr<const codec::Codec> codec_;
  std::span<const Step> steps_;
  std::int64_t first_;
  std::int64_t elems_;
  plan::Chunk plan_;
  std::array<at::Tensor, plan::kBuffers> buffers_;
  std::vector<Shard> shards_;
  // What this rank adds up, in the order of ranks.
  std::vector<codec::Codec::ConstBytes> inputs_;
};

}  // namespace gradwire
