#include "gradwire/comm/chunk.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "gradwire/comm/finite.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

using codec::Codec;

}  // namespace

std::span<const Lane::Job::Step> Chunk::steps_in(int world) {
  static const Step kPair[] = {
      step("all-to-all", &Chunk::send_shards), step("decode", &Chunk::finish)};
  static const Step kWithOwners[] = {
      step("all-to-all", &Chunk::send_shards),
      step("all-gather", &Chunk::send_sum),
      step("decode", &Chunk::finish)};
  if (plan::has_owners(world)) {
    return kWithOwners;
  }
  return kPair;
}

Chunk::Chunk(
    std::shared_ptr<const Codec> codec,
    const Exchange::Layout& layout,
    std::int64_t first,
    const std::vector<int>& owners)
    : codec_(std::move(codec)),
      steps_(steps_in(layout.world)),
      first_(first),
      elems_(codec::count_elems(layout.segments)) {
  std::vector<Bytes> messages;
  for (auto& part :
       codec::split(layout.segments, codec_->cut(), std::ssize(owners))) {
    const std::int64_t elems = codec::count_elems(part);
    messages.push_back(codec_->message_parts(part));
    shards_.push_back({.segments = std::move(part), .first = first});
    first += elems;
  }
  plan_ = plan::plan_chunk(layout.rank, layout.world, messages, owners);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i] = at::zeros({plan_.buffer_bytes[i]}, at::kByte);
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].encoded = bytes(plan_.shards[i].encoded);
    shards_[i].result = bytes(plan_.shards[i].result);
  }
  if (plan_.own) {
    inputs_ = bytes(plan_.own->inputs);
  }
}

at::Tensor Chunk::part(const plan::Place& place) const {
  return buffers_[static_cast<std::size_t>(place.buffer)].narrow(
      0, place.first, place.bytes);
}

Codec::Bytes Chunk::bytes(const plan::Place& place) const {
  const at::Tensor& buffer = buffers_[static_cast<std::size_t>(place.buffer)];
  return {
      buffer.data_ptr<std::uint8_t>() + place.first,
      static_cast<std::size_t>(place.bytes)};
}

std::vector<Codec::ConstBytes> Chunk::bytes(
    const std::vector<plan::Place>& places) const {
  std::vector<Codec::ConstBytes> result;
  result.reserve(places.size());
  for (const plan::Place& place : places) {
    result.emplace_back(bytes(place));
  }
  return result;
}

std::int64_t Chunk::buffer_bytes() const {
  return std::accumulate(
      plan_.buffer_bytes.begin(), plan_.buffer_bytes.end(), std::int64_t{0});
}

bool Chunk::checks() const {
  return !std::exchange(run().begun, true) && !run().use.asked.empty();
}

// Encodes while the check is on its way.
void Chunk::send_shards(const Lane::Groups& groups) {
  if (run().refused()) {
    return;
  }
  const bool checked = checks();
  if (checked) {
    run().check.send(groups[0], run().use.asked);
  }
  encode();
  if (const auto error = checked ? run().check.compare() : nullptr) {
    run().refuse(error);
    return;
  }
  send(plan_.transfers[0], groups);
}

void Chunk::send_sum(const Lane::Groups& groups) {
  if (run().refused()) {
    return;
  }
  if (plan_.own) {
    reduce();
  }
  send(plan_.transfers[1], groups);
}

void Chunk::finish(const Lane::Groups&) {
  if (run().refused()) {
    return;
  }
  const bool decoded = decode();
  const bool finite = write_back() && decoded;
  if (!finite && run().use.not_finite) {
    *run().use.not_finite = true;
  }
}

void Chunk::send(const plan::Transfer& transfer, const Lane::Groups& groups) {
  for (std::size_t i = 0; i < transfer.size(); ++i) {
    const plan::Direction& half = transfer[i];
    await(all_to_all_messages(
        groups[i],
        part(half.output),
        part(half.input),
        half.output_bytes,
        half.input_bytes,
        half.metadata_bytes));
  }
}

float* Chunk::floats(const Shard& shard) const {
  return run().floats.data_ptr<float>() + shard.first;
}

codec::Feedback Chunk::feedback(const Shard& shard) const {
  const auto& all = run().use.feedback;
  if (all.residual == nullptr) {
    return {};
  }
  return {all.residual + shard.first, all.next_residual + shard.first};
}

void Chunk::encode() {
  const at::Tensor& values = run().use.values;
  if (!run().floats.is_same(values)) {
    run()
        .floats.narrow(0, first_, elems_)
        .copy_(values.narrow(0, first_, elems_));
  }
  for (const Shard& shard : shards_) {
    codec_->encode(
        shard.segments,
        floats(shard),
        shard.encoded,
        feedback(shard),
        run().use.noise);
  }
}

void Chunk::reduce() {
  const Shard& mine = shards_[plan_.own->shard];
  const auto& sums = plan_.own->sums;
  const Codec::Bytes sum = bytes(sums.front());
  codec_->reduce(
      mine.segments,
      inputs_,
      run().use.divisor,
      sum,
      feedback(mine).next_residual,
      run().use.owner_noise);
  for (std::size_t i = 1; i < sums.size(); ++i) {
    std::ranges::copy(sum, bytes(sums[i]).begin());
  }
}

bool Chunk::decode() {
  // Owners have divided already.
  const bool divided = plan_.transfers.size() > 1;
  const float divisor = divided ? 1.0f : run().use.divisor;
  bool finite = true;
  for (const Shard& shard : shards_) {
    finite &=
        codec_->decode(shard.segments, shard.result, floats(shard), divisor);
  }
  return finite;
}

bool Chunk::write_back() {
  if (run().floats.is_same(run().use.values)) {
    return true;
  }
  auto values = run().use.values.narrow(0, first_, elems_);
  values.copy_(run().floats.narrow(0, first_, elems_));
  // What fits into fp32 may be too large for the type of the values.
  return all_finite(values);
}

}  // namespace gradwire
