#pragma once

// Private to gradwire: what each rank sends in one message.

#include <memory>
#include <vector>

#include "gradwire/codec/codec.h"
#include "gradwire/comm/spread.h"

namespace gradwire {

// Planned once and run again and again, one run at a time.
class SpreadRound : public Lane::Job {
 public:
  using Targets = std::vector<std::shared_ptr<SpreadTarget>>;

  SpreadRound(
      int rank,
      std::shared_ptr<const codec::Codec> codec,
      const Targets& targets,
      const plan::Round& round);

  // The phases that a lane needs for it.
  static std::vector<Lane::Phase> phases();
  std::span<const Step> steps() const override;

  // Of the next run, which waits for the run before that had the memory.
  void use(Spreader::Memory& memory);

 private:
  // Some elements of a target, in the order of the message.
  struct Piece {
    std::shared_ptr<SpreadTarget> target;
    std::int64_t first = 0;
    std::int64_t elems = 0;
  };
  // What one rank sends.
  struct Message {
    std::vector<Piece> pieces;
    codec::Segments segments;
    Bytes bytes;
    // Where it arrives among those received.
    std::int64_t begin = 0;
  };

  // The steps.
  void fill(const Lane::Groups& groups);
  void send(const Lane::Groups& groups);
  void write(const Lane::Groups& groups);

  void reserve();
  std::size_t copies() const;
  void pack(char* to) const;
  void unpack(const Message& message, const char* from) const;
  void encode(char* to);
  void decode(const Message& message, const char* from);
  void send_half(
      const Group& group, std::size_t to_begin, std::size_t from_begin);
  const Message& own() const {
    return messages_[rank_];
  }

  std::size_t rank_;
  std::shared_ptr<const codec::Codec> codec_;
  // By rank.
  std::vector<Message> messages_;
  std::int64_t received_bytes_ = 0;
  std::int64_t most_elems_ = 0;

  Spreader::Memory* memory_ = nullptr;
  Future before_;
};

}  // namespace gradwire
