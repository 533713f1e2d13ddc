#include "gradwire/comm/spread_round.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

char* address(const SpreadTarget& target, std::int64_t first) {
  return static_cast<char*>(target.values.data_ptr()) +
         first * static_cast<std::int64_t>(target.values.element_size());
}

// Grows, so that it settles at what the largest round needs.
void reserve_elems(
    at::Tensor& memory, std::int64_t elems, at::ScalarType type) {
  if (!memory.defined() || memory.numel() < elems) {
    memory = at::empty({elems}, type);
  }
}

}  // namespace

SpreadRound::SpreadRound(
    int rank,
    std::shared_ptr<const codec::Codec> codec,
    const Targets& targets,
    const plan::Round& round)
    : rank_(static_cast<std::size_t>(rank)), codec_(std::move(codec)) {
  for (const auto& runs : round) {
    Message& message = messages_.emplace_back();
    message.begin = received_bytes_;
    std::int64_t elems = 0;
    for (const plan::Run& run : runs) {
      const auto& target = targets.at(run.tensor);
      message.pieces.push_back({target, run.first, run.elems});
      message.segments.push_back({run.elems, target->stream, run.first});
      message.bytes.payload +=
          run.elems * static_cast<std::int64_t>(target->values.element_size());
      elems += run.elems;
    }
    most_elems_ = std::max(most_elems_, elems);
    if (codec_ && elems > 0) {
      message.bytes = codec_->message_parts(message.segments);
    }
    if (messages_.size() - 1 != rank_) {
      received_bytes_ += message.bytes.total();
    }
  }
}

std::vector<Lane::Phase> SpreadRound::phases() {
  return {{"step", 0}, {"parameters", 2}, {"write", 0}};
}

std::span<const Lane::Job::Step> SpreadRound::steps() const {
  static const Step kSteps[] = {
      step("step", &SpreadRound::fill),
      step("parameters", &SpreadRound::send),
      step("write", &SpreadRound::write)};
  return kSteps;
}

void SpreadRound::use(Spreader::Memory& memory) {
  memory_ = &memory;
  before_ = memory.last;
}

void SpreadRound::reserve() {
  reserve_elems(memory_->received, received_bytes_, at::kByte);
  reserve_elems(
      memory_->copies,
      static_cast<std::int64_t>(copies()) * own().bytes.total(),
      at::kByte);
  if (codec_) {
    reserve_elems(memory_->floats, most_elems_, at::kFloat);
  }
}

// It is a later phase that ends the run before, so this wait ends.
void SpreadRound::fill(const Lane::Groups&) {
  if (before_.valid()) {
    before_.wait();
    before_ = {};
  }
  reserve();
  auto* message = static_cast<char*>(memory_->copies.data_ptr());
  const auto bytes = static_cast<std::size_t>(own().bytes.total());
  if (bytes == 0) {
    return;
  }
  if (codec_) {
    encode(message);
  } else {
    pack(message);
  }
  for (std::size_t i = 1; i < copies(); ++i) {
    std::memcpy(message + i * bytes, message, bytes);
  }
}

// What goes to different ranks of one half lies in different places.
std::size_t SpreadRound::copies() const {
  return std::max(rank_, messages_.size() - 1 - rank_);
}

void SpreadRound::pack(char* to) const {
  for (const Piece& piece : own().pieces) {
    const std::size_t bytes = static_cast<std::size_t>(piece.elems) *
                              piece.target->values.element_size();
    std::memcpy(to, address(*piece.target, piece.first), bytes);
    to += bytes;
  }
}

void SpreadRound::unpack(const Message& message, const char* from) const {
  for (const Piece& piece : message.pieces) {
    const std::size_t bytes = static_cast<std::size_t>(piece.elems) *
                              piece.target->values.element_size();
    std::memcpy(address(*piece.target, piece.first), from, bytes);
    from += bytes;
  }
}

void SpreadRound::encode(char* to) {
  auto* change = memory_->floats.data_ptr<float>();
  for (const Piece& piece : own().pieces) {
    const SpreadTarget& target = *piece.target;
    const float* wanted =
        target.wanted.const_data_ptr<float>() + (piece.first - target.first);
    const float* now = target.values.const_data_ptr<float>() + piece.first;
    for (std::int64_t i = 0; i < piece.elems; ++i) {
      change[i] = wanted[i] - now[i];
    }
    change += piece.elems;
  }
  codec_->encode(
      own().segments,
      memory_->floats.const_data_ptr<float>(),
      {reinterpret_cast<std::uint8_t*>(to),
       static_cast<std::size_t>(own().bytes.total())});
}

void SpreadRound::decode(const Message& message, const char* from) {
  const codec::Codec::ConstBytes bytes(
      reinterpret_cast<const std::uint8_t*>(from),
      static_cast<std::size_t>(message.bytes.total()));
  codec_->decode(
      message.segments, {&bytes, 1}, memory_->floats.data_ptr<float>());
  const auto* change = memory_->floats.const_data_ptr<float>();
  for (const Piece& piece : message.pieces) {
    auto* values = piece.target->values.data_ptr<float>() + piece.first;
    for (std::int64_t i = 0; i < piece.elems; ++i) {
      values[i] += change[i];
    }
    change += piece.elems;
  }
}

// What goes to higher ranks and what goes to lower ones takes connections of
// its own, see plan::Direction.
void SpreadRound::send(const Lane::Groups& groups) {
  send_half(groups[0], rank_ + 1, 0);
  send_half(groups[1], 0, rank_ + 1);
}

// To all ranks from `to_begin` on, on this side of the own rank, and from those
// on the other side.
void SpreadRound::send_half(
    const Group& group, std::size_t to_begin, std::size_t from_begin) {
  const std::size_t world = messages_.size();
  const std::size_t to_end = to_begin == 0 ? rank_ : world;
  const std::size_t from_end = from_begin == 0 ? rank_ : world;
  const std::int64_t bytes = own().bytes.total();
  std::vector<std::int64_t> sent(world);
  std::vector<std::int64_t> received(world);
  for (std::size_t rank = to_begin; rank < to_end; ++rank) {
    sent[rank] = bytes;
  }
  std::int64_t begin = from_begin < world ? messages_[from_begin].begin : 0;
  std::int64_t arriving = 0;
  for (std::size_t rank = from_begin; rank < from_end; ++rank) {
    received[rank] = messages_[rank].bytes.total();
    arriving += received[rank];
  }
  const auto receivers = static_cast<std::int64_t>(to_end - to_begin);
  await(all_to_all_messages(
      group,
      memory_->received.narrow(0, begin, arriving),
      memory_->copies.narrow(0, 0, receivers * bytes),
      std::move(received),
      std::move(sent),
      receivers * own().bytes.metadata));
}

void SpreadRound::write(const Lane::Groups&) {
  const auto* received =
      static_cast<const char*>(memory_->received.const_data_ptr());
  for (std::size_t rank = 0; rank < messages_.size(); ++rank) {
    const Message& message = messages_[rank];
    if (message.pieces.empty() || (rank == rank_ && !codec_)) {
      continue;
    }
    if (codec_) {
      decode(
          message,
          rank == rank_
              ? static_cast<const char*>(memory_->copies.const_data_ptr())
              : received + message.begin);
    } else {
      unpack(message, received + message.begin);
    }
  }
}

}  // namespace gradwire
