#include "gradwire/comm/exchange.h"

#include <ATen/ops/empty.h>

#include "gradwire/base/error.h"
#include "gradwire/comm/chunk.h"
#include "gradwire/plan/all_reduce.h"

namespace gradwire {
namespace {

using codec::Codec;

std::int64_t chunks_of(const Codec& codec, const Exchange::Layout& layout) {
  if (codec.has_one_scale()) {
    return 1;
  }
  return plan::count_chunks(
      layout.world, codec.message_parts(layout.segments).total());
}

// Small buckets begin with different owners.
std::uint64_t start_of(const codec::Segments& segments) {
  return segments.empty() ? 0 : segments.front().stream;
}

}  // namespace

std::vector<Lane::Phase> exchange_phases(int world) {
  std::vector<Lane::Phase> phases;
  for (const auto& step : Chunk::steps_in(world)) {
    phases.push_back({step.name, 2});
  }
  // The last one only decodes.
  phases.back().groups = 0;
  return phases;
}

Exchange::Exchange(
    const std::shared_ptr<const Codec>& codec, const Layout& layout)
    : run_(std::make_shared<ExchangeRun>()),
      elems_(codec::count_elems(layout.segments)) {
  const std::int64_t chunks = chunks_of(*codec, layout);
  plan::Owners owners(layout.world, start_of(layout.segments));
  std::int64_t first = 0;
  for (auto& part : codec::split(layout.segments, codec->cut(), chunks)) {
    const std::int64_t elems = codec::count_elems(part);
    const std::int64_t blocks = codec::count_blocks(part, codec->cut());
    chunks_.push_back(std::make_shared<Chunk>(
        codec,
        Layout{layout.rank, layout.world, std::move(part)},
        first,
        owners.next(blocks)));
    first += elems;
  }
}

Exchange::~Exchange() = default;

bool Exchange::idle() const {
  return !run_->busy();
}

std::int64_t Exchange::kept_bytes() const {
  // Of a chunk without its buffers.
  constexpr std::int64_t kChunkBytes = 1 << 14;
  std::int64_t bytes =
      staging_.defined() ? static_cast<std::int64_t>(staging_.nbytes()) : 0;
  for (const auto& chunk : chunks_) {
    bytes += chunk->buffer_bytes() + kChunkBytes;
  }
  return bytes;
}

Future Exchange::start(Lane& lane, Use use) {
  if (use.values.numel() != elems_) {
    fail(
        "comm",
        "an exchange of ",
        elems_,
        " elements got ",
        use.values.numel());
  }
  Future future = run_->begin(
      use.result.defined() ? use.result : use.values, chunks_.size());
  run_->floats = use.values;
  if (use.values.scalar_type() != at::kFloat) {
    if (!staging_.defined()) {
      staging_ = at::empty({elems_}, at::kFloat);
    }
    run_->floats = staging_;
  }
  run_->use = std::move(use);
  run_->begun = false;
  for (const auto& chunk : chunks_) {
    lane.submit(chunk, run_);
  }
  return future;
}

}  // namespace gradwire
