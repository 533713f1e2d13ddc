#pragma once

// Private to gradwire: the part of an exchange that passes a lane at a time.

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "gradwire/codec/codec.h"
#include "gradwire/comm/exchange.h"
#include "gradwire/comm/lane.h"

namespace gradwire {

// One use of an exchange, shared by its chunks.
struct ExchangeRun {
  Exchange::Use use;
  // Where codecs read and write: the values, or their copy in fp32.
  at::Tensor floats;
  Future::Raw result;
  std::atomic<std::size_t> chunks_left{0};
  std::mutex mutex;
  std::exception_ptr first_error;

  // Completes the result, but not before the last chunk has ended, well or not:
  // until then others work on the values. Thread safe.
  void chunk_ended(const std::exception_ptr& error);
};

// Some consecutive elements, in one shard a rank (with two ranks in one for
// both), the messages that carry them and the buffers for these, planned once.
// Phases: encode and send, reduce and send back, decode; with two ranks there
// is no second one. One run at a time.
class Chunk : public Lane::Job {
 public:
  // `first`: where the chunk begins among the elements of the exchange.
  Chunk(
      std::shared_ptr<const codec::Codec> codec,
      const Exchange::Layout& layout,
      std::int64_t first);

  void begin(std::shared_ptr<ExchangeRun> run) {
    run_ = std::move(run);
  }

  void wait() override;
  void run(std::size_t phase, const Lane::Groups& groups) override;
  void fail(const std::exception_ptr& error) noexcept override;

 private:
  using ByteCounts = std::vector<std::int64_t>;

  // A run of elements and the message that carries it.
  struct Shard {
    codec::Segments segments;
    std::int64_t first = 0;
    std::int64_t bytes = 0;
    std::int64_t metadata_bytes = 0;
  };
  // An all-to-all of messages. What goes to higher ranks and what goes to lower
  // ones takes connections of its own: a receiver tells the sender that it is
  // ready, and on connections that carry data both ways this word would wait
  // behind all that is on its way already.
  struct Transfer {
    struct Direction {
      at::Tensor output;
      at::Tensor input;
      ByteCounts output_bytes;
      ByteCounts input_bytes;
    };
    std::array<Direction, 2> directions;
    std::int64_t metadata_bytes = 0;
  };

  void plan_pair();
  void plan_shards();
  Transfer plan_transfer(
      const at::Tensor& output,
      const at::Tensor& input,
      const ByteCounts& output_bytes,
      const ByteCounts& input_bytes) const;
  void start(const Transfer& transfer, const Lane::Groups& groups);
  void encode();
  void reduce();
  void decode();
  void finish(bool finite);

  bool is_own(std::size_t shard) const {
    return static_cast<int>(shard) == rank_;
  }
  float* floats(const Shard& shard) const;
  codec::Feedback feedback(const Shard& shard) const;

  std::shared_ptr<const codec::Codec> codec_;
  int rank_;
  int world_;
  std::int64_t first_;
  std::int64_t elems_;
  std::vector<Shard> shards_;
  // What this rank encodes: messages for others one after another, and its own.
  at::Tensor outgoing_;
  at::Tensor own_;
  at::Tensor incoming_;
  Transfer to_owners_;
  // What the owner sends back: its shard, once for every other rank, and the
  // shards of the others.
  at::Tensor reduced_;
  at::Tensor gathered_;
  Transfer to_all_;
  // One message a rank of what this rank adds up, in rank order.
  std::vector<codec::Codec::ConstBytes> inputs_;

  std::shared_ptr<ExchangeRun> run_;
  std::array<Future, 2> pending_;
};

}  // namespace gradwire
