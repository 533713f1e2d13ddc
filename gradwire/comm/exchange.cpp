#include "gradwire/comm/exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/comm/chunk.h"

namespace gradwire {
namespace {

using codec::Codec;

// Encoded: small enough for phases to overlap, big enough to be worth the
// wake-ups that a chunk costs. Two ranks have one transfer and less to overlap.
std::size_t chunk_bytes(int world) {
  constexpr std::size_t kMebi = 1 << 20;
  return world == 2 ? 4 * kMebi : kMebi;
}

std::int64_t count_chunks(const Codec& codec, const Exchange::Layout& layout) {
  if (codec.has_one_scale()) {
    return 1;
  }
  const std::size_t bytes = codec.message_bytes(layout.segments);
  const std::size_t wanted = chunk_bytes(layout.world);
  return static_cast<std::int64_t>(
      std::max<std::size_t>(1, (bytes + wanted / 2) / wanted));
}

}  // namespace

std::vector<Lane::Phase> exchange_phases(int world) {
  if (world == 2) {
    return {{"all-to-all", 2}, {"decode", 0}};
  }
  return {{"all-to-all", 2}, {"all-gather", 2}, {"decode", 0}};
}

Exchange::Exchange(std::shared_ptr<const Codec> codec, const Layout& layout)
    : elems_(codec::count_elems(layout.segments)) {
  const std::int64_t chunks = count_chunks(*codec, layout);
  std::int64_t first = 0;
  for (auto& part : codec::split(layout.segments, codec->cut(), chunks)) {
    const std::int64_t elems = codec::count_elems(part);
    chunks_.push_back(std::make_shared<Chunk>(
        codec, Layout{layout.rank, layout.world, std::move(part)}, first));
    first += elems;
  }
}

Exchange::~Exchange() = default;

bool Exchange::idle() const {
  return !last_.valid() || last_.done();
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
  auto run = std::make_shared<ExchangeRun>();
  run->result = Future::make_raw();
  run->chunks_left = chunks_.size();
  run->floats = use.values;
  if (use.values.scalar_type() != at::kFloat) {
    if (!staging_.defined()) {
      staging_ = at::empty({elems_}, at::kFloat);
    }
    run->floats = staging_;
  }
  run->use = std::move(use);
  last_ = Future(run->result);
  for (const auto& chunk : chunks_) {
    chunk->begin(run);
    lane.submit(chunk);
  }
  return last_;
}

}  // namespace gradwire
