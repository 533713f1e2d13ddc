#include "gradwire/comm/spread.h"

#include <algorithm>
#include <numeric>

#include "gradwire/comm/spread_round.h"

namespace gradwire {
namespace {

constexpr const char* kNoCodec = "none";

// Of a round, all ranks together and before they are encoded; less only where
// ranks are so many that their messages would be tiny.
constexpr std::int64_t kRoundBytes = 4 << 20;
constexpr std::int64_t kLeastMessageBytes = 128 << 10;

}  // namespace

std::string Spreader::check_codec(const std::string& codec) {
  return codec == kNoCodec ? codec : codec::check_codec_spec(codec);
}

std::int64_t Spreader::cut(const std::string& codec, std::int64_t multiple) {
  return codec == kNoCodec ? multiple
                           : std::lcm(multiple, codec::make_codec(codec).cut());
}

Spreader::Spreader(
    const Group& group, const std::string& codec, const std::string& label)
    : rank_(group.rank()), world_(group.size()) {
  if (codec != kNoCodec) {
    codec_ = std::make_shared<const codec::Codec>(codec::make_codec(codec));
  }
  if (world_ > 1) {
    lane_ = std::make_unique<Lane>(group, label, SpreadRound::phases());
  }
}

Spreader::~Spreader() = default;

std::shared_ptr<Spread> Spreader::make_spread(
    const std::vector<std::shared_ptr<SpreadTarget>>& targets,
    const plan::Shards& shards) {
  auto spread = std::make_shared<Spread>();
  if (world_ == 1) {
    return spread;
  }
  std::vector<std::int64_t> elem_bytes;
  elem_bytes.reserve(targets.size());
  for (const auto& target : targets) {
    elem_bytes.push_back(
        static_cast<std::int64_t>(target->values.element_size()));
  }
  const auto rounds = plan::plan_rounds(
      shards,
      elem_bytes,
      codec_ ? codec_->cut() : 1,
      std::max(kRoundBytes / world_, kLeastMessageBytes));
  for (const auto& round : rounds) {
    spread->rounds_.push_back(
        std::make_shared<SpreadRound>(rank_, codec_, targets, round));
  }
  return spread;
}

Spreader::Memory& Spreader::next_memory() {
  memory_ = (memory_ + 1) % kMemories;
  return memories_[memory_];
}

// Rounds end in their order, so the last one is the end of all.
Future Spreader::start(Spread& spread, const at::Tensor& value) {
  Future last = spread.empty() ? Future::ready(value) : Future();
  for (const auto& round : spread.rounds_) {
    Memory& memory = next_memory();
    round->use(memory);
    last = lane_->submit(round, value);
    memory.last = last;
  }
  return last;
}

Future Spreader::run(std::shared_ptr<Lane::Job> job, at::Tensor value) {
  return lane_->submit(std::move(job), std::move(value));
}

void Spreader::fail(const std::exception_ptr& error) {
  if (lane_) {
    lane_->fail(error);
  }
  std::rethrow_exception(error);
}

}  // namespace gradwire
