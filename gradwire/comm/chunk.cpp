#include "gradwire/comm/chunk.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "gradwire/comm/finite.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

using codec::Codec;

at::Tensor make_bytes(std::int64_t count) {
  return at::zeros({count}, at::kByte);
}

std::span<std::uint8_t> slice(
    const at::Tensor& bytes, std::int64_t from, std::int64_t count) {
  return {
      bytes.data_ptr<std::uint8_t>() + from, static_cast<std::size_t>(count)};
}

std::int64_t total(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

}  // namespace

void ExchangeRun::chunk_ended(const std::exception_ptr& error) {
  if (error) {
    const std::lock_guard lock(mutex);
    first_error = first_error ? first_error : error;
  }
  if (--chunks_left > 0) {
    return;
  }
  if (first_error) {
    result->setError(first_error);
  } else {
    result->markCompleted(c10::IValue(use.values));
  }
}

Chunk::Chunk(
    std::shared_ptr<const Codec> codec,
    const Exchange::Layout& layout,
    std::int64_t first)
    : codec_(std::move(codec)),
      rank_(layout.rank),
      world_(layout.world),
      first_(first),
      elems_(codec::count_elems(layout.segments)),
      inputs_(layout.world) {
  const int shards = world_ == 2 ? 1 : world_;
  for (auto& part : codec::split(layout.segments, codec_->cut(), shards)) {
    const std::int64_t elems = codec::count_elems(part);
    const Bytes bytes = codec_->message_parts(part);
    shards_.push_back({std::move(part), first, bytes.total(), bytes.metadata});
    first += elems;
  }
  if (world_ == 2) {
    plan_pair();
  } else {
    plan_shards();
  }
}

// Both ranks send all of it.
void Chunk::plan_pair() {
  const Shard& all = shards_[0];
  const int peer = 1 - rank_;
  own_ = make_bytes(all.bytes);
  incoming_ = make_bytes(all.bytes);
  ByteCounts bytes(2);
  bytes[peer] = all.bytes;
  to_owners_ = plan_transfer(incoming_, own_, bytes, bytes);
  to_owners_.metadata_bytes = all.metadata_bytes;
  inputs_[rank_] = slice(own_, 0, all.bytes);
  inputs_[peer] = slice(incoming_, 0, all.bytes);
}

void Chunk::plan_shards() {
  const Shard& mine = shards_[rank_];
  ByteCounts theirs(world_);
  ByteCounts ours(world_, mine.bytes);
  ours[rank_] = 0;
  std::int64_t their_metadata = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (!is_own(i)) {
      theirs[i] = shards_[i].bytes;
      their_metadata += shards_[i].metadata_bytes;
    }
  }
  own_ = make_bytes(mine.bytes);
  outgoing_ = make_bytes(total(theirs));
  incoming_ = make_bytes(total(ours));
  reduced_ = make_bytes(total(ours));
  gathered_ = make_bytes(total(theirs));
  to_owners_ = plan_transfer(incoming_, outgoing_, ours, theirs);
  to_owners_.metadata_bytes = their_metadata;
  to_all_ = plan_transfer(gathered_, reduced_, theirs, ours);
  to_all_.metadata_bytes = (world_ - 1) * mine.metadata_bytes;
  std::int64_t at = 0;
  for (int i = 0; i < world_; ++i) {
    inputs_[i] = i == rank_ ? slice(own_, 0, mine.bytes)
                            : slice(incoming_, at, mine.bytes);
    at += i == rank_ ? 0 : mine.bytes;
  }
}

Chunk::Transfer Chunk::plan_transfer(
    const at::Tensor& output,
    const at::Tensor& input,
    const ByteCounts& output_bytes,
    const ByteCounts& input_bytes) const {
  const auto lower = [&](ByteCounts bytes) {
    std::fill(bytes.begin() + rank_, bytes.end(), 0);
    return bytes;
  };
  const auto higher = [&](ByteCounts bytes) {
    std::fill(bytes.begin(), bytes.begin() + rank_, 0);
    return bytes;
  };
  const std::int64_t in = total(lower(output_bytes));
  const std::int64_t out = total(lower(input_bytes));
  Transfer transfer;
  transfer.directions[0] = {
      output.narrow(0, 0, in),
      input.narrow(0, out, input.numel() - out),
      lower(output_bytes),
      higher(input_bytes)};
  transfer.directions[1] = {
      output.narrow(0, in, output.numel() - in),
      input.narrow(0, 0, out),
      higher(output_bytes),
      lower(input_bytes)};
  return transfer;
}

void Chunk::start(const Transfer& transfer, const Lane::Groups& groups) {
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const auto& direction = transfer.directions[i];
    pending_[i] = groups[i].all_to_all(
        direction.output,
        direction.input,
        direction.output_bytes,
        direction.input_bytes);
  }
  // Of what the groups counted as payload, so much was metadata.
  groups[0].impl().meter->add(
      {.payload = -transfer.metadata_bytes,
       .metadata = transfer.metadata_bytes});
}

void Chunk::wait() {
  for (Future& half : pending_) {
    std::exchange(half, Future()).wait();
  }
}

void Chunk::run(std::size_t phase, const Lane::Groups& groups) {
  if (phase == 0) {
    encode();
    start(to_owners_, groups);
  } else if (phase == 1 && world_ > 2) {
    reduce();
    start(to_all_, groups);
  } else {
    decode();
  }
}

void Chunk::fail(const std::exception_ptr& error) noexcept {
  if (const auto run = std::exchange(run_, nullptr)) {
    run->chunk_ended(error);
  }
}

float* Chunk::floats(const Shard& shard) const {
  return run_->floats.data_ptr<float>() + shard.first;
}

codec::Feedback Chunk::feedback(const Shard& shard) const {
  const auto& all = run_->use.feedback;
  if (all.residual == nullptr) {
    return {};
  }
  return {all.residual + shard.first, all.next_residual + shard.first};
}

void Chunk::encode() {
  const at::Tensor& values = run_->use.values;
  if (!run_->floats.is_same(values)) {
    run_->floats.narrow(0, first_, elems_)
        .copy_(values.narrow(0, first_, elems_));
  }
  std::int64_t at = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = shards_[i];
    const bool own = is_own(i) || world_ == 2;
    codec_->encode(
        shard.segments,
        floats(shard),
        own ? slice(own_, 0, shard.bytes) : slice(outgoing_, at, shard.bytes),
        feedback(shard),
        run_->use.noise);
    at += own ? 0 : shard.bytes;
  }
}

void Chunk::reduce() {
  const Shard& mine = shards_[rank_];
  const auto first = slice(reduced_, 0, mine.bytes);
  codec_->reduce(
      mine.segments,
      inputs_,
      run_->use.divisor,
      first,
      feedback(mine).next_residual,
      run_->use.owner_noise);
  // Gloo wants what goes to different ranks in different places.
  for (int i = 1; i < world_ - 1; ++i) {
    std::ranges::copy(
        first, slice(reduced_, i * mine.bytes, mine.bytes).begin());
  }
}

void Chunk::decode() {
  if (world_ == 2) {
    const Shard& all = shards_[0];
    finish(
        codec_->decode(all.segments, inputs_, floats(all), run_->use.divisor));
    return;
  }
  bool finite = true;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = shards_[i];
    const Codec::ConstBytes message = is_own(i)
                                          ? slice(reduced_, 0, shard.bytes)
                                          : slice(gathered_, at, shard.bytes);
    at += is_own(i) ? 0 : shard.bytes;
    finite &= codec_->decode(shard.segments, {&message, 1}, floats(shard));
  }
  finish(finite);
}

void Chunk::finish(bool finite) {
  const auto run = std::exchange(run_, nullptr);
  if (!run->floats.is_same(run->use.values)) {
    auto values = run->use.values.narrow(0, first_, elems_);
    values.copy_(run->floats.narrow(0, first_, elems_));
    // What fits into fp32 may be too large for the type of the values.
    finite = finite && all_finite(values);
  }
  if (!finite && run->use.not_finite) {
    *run->use.not_finite = true;
  }
  run->chunk_ended(nullptr);
}

}  // namespace gradwire
