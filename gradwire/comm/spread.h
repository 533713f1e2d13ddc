#pragma once

// Private to gradwire: values travel from the ranks that own them to all.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/comm/lane.h"
#include "gradwire/plan/shards.h"

namespace gradwire {

namespace codec {
class Codec;
}

// Memory that is the same on all ranks, and stays so.
struct SpreadTarget {
  // One-dimensional and contiguous. Every rank writes what owners send. May
  // begin to refer to other memory between two uses.
  at::Tensor values;
  // Names it, for codecs that round by chance.
  std::uint64_t stream = 0;
  // For codecs: this rank's run as it should be, and where it begins.
  at::Tensor wanted = {};
  std::int64_t first = 0;
};

class SpreadRound;

// What is sent in one use: the runs that each rank owns, in rounds. Made by a
// Spreader, for it to start. One use at a time.
class Spread {
 public:
  bool empty() const {
    return rounds_.empty();
  }

 private:
  friend class Spreader;

  std::vector<std::shared_ptr<SpreadRound>> rounds_;
};

// Sends runs of memory from their owners to all ranks, over a lane of its own.
// Without a codec runs arrive as they are. With one it is the change of a run
// that travels, from what it is on all ranks to what its owner wants it to be,
// and all of them, the owner too, add what can be decoded. So they stay
// bit-identical, and what an encoding loses is part of the next change.
//
// Messages pass through a few buffers, however much there is to send. Not
// thread safe; its calls come in the same order on all ranks.
class Spreader {
 public:
  // `codec`: "none" or a codec's spec. Collective, if there is more than one
  // rank.
  Spreader(
      const Group& group, const std::string& codec, const std::string& label);
  ~Spreader();

  // Throws Error for a bad spec. Returns its canonical form.
  static std::string check_codec(const std::string& codec);
  // Runs are best cut between blocks of so many elements, a multiple of
  // `multiple`.
  static std::int64_t cut(const std::string& codec, std::int64_t multiple);

  // Runs of `shards` are of these targets. Targets outlive what is planned.
  std::shared_ptr<Spread> make_spread(
      const std::vector<std::shared_ptr<SpreadTarget>>& targets,
      const plan::Shards& shards);

  // Returns at once. The future holds `value` when all ranks' runs are here.
  Future start(Spread& spread, const at::Tensor& value = {});
  // A job of one step that only computes, between two uses of start().
  Future run(std::shared_ptr<Lane::Job> job, at::Tensor value = {});
  // See Lane.
  [[noreturn]] void fail(const std::exception_ptr& error);

 private:
  friend class SpreadRound;

  // What one round at a time needs.
  struct Memory {
    // Messages of the other ranks, and copies of this rank's own.
    at::Tensor received = {};
    at::Tensor copies = {};
    at::Tensor floats = {};
    // The last round to use it.
    Future last = {};
  };
  static constexpr std::size_t kMemories = 3;

  Memory& next_memory();

  int rank_;
  int world_;
  std::shared_ptr<const codec::Codec> codec_;
  std::array<Memory, kMemories> memories_;
  std::size_t memory_ = 0;
  // Last, so that its threads end before what they work on.
  std::unique_ptr<Lane> lane_;
};

}  // namespace gradwire
