#include "gradwire/comm/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>

#include "gradwire/base/error.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

using codec::Codec;
using codec::Segments;

// Encoded: small enough for phases to overlap, big enough to be worth the
// wake-ups that a chunk costs.
constexpr std::size_t kChunkBytes = 1 << 20;

at::Tensor make_bytes(std::int64_t count) {
  return at::zeros({count}, at::kByte);
}

std::span<std::uint8_t> slice(
    const at::Tensor& bytes, std::int64_t from, std::int64_t count) {
  return {
      bytes.data_ptr<std::uint8_t>() + from, static_cast<std::size_t>(count)};
}

// Of what was counted as payload, so much was metadata.
void count_as_metadata(const Group& group, std::int64_t bytes) {
  group.impl().meter->add({.payload = -bytes, .metadata = bytes});
}

}  // namespace

// One use of an exchange, shared by its chunks.
struct Exchange::Run {
  Use use;
  // Where codecs read and write: the values, or their copy in fp32.
  at::Tensor floats;
  Future::Raw result;
  std::atomic<std::size_t> chunks_left{0};
  std::mutex mutex;
  std::exception_ptr first_error;

  // Not before the last chunk has ended, well or not: until then others work
  // on the values.
  void chunk_ended(const std::exception_ptr& error) {
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
};

class Exchange::Chunk : public Lane::Job {
 public:
  Chunk(
      std::shared_ptr<const Codec> codec,
      const Layout& layout,
      std::int64_t first);

  void begin(std::shared_ptr<Run> run) {
    run_ = std::move(run);
  }
  void wait() override {
    for (Future& half : pending_) {
      std::exchange(half, Future()).wait();
    }
  }
  void run(std::size_t phase, const Lane::Groups& groups) override;
  void fail(const std::exception_ptr& error) noexcept override {
    if (const auto run = std::exchange(run_, nullptr)) {
      run->chunk_ended(error);
    }
  }

 private:
  // A run of elements and the message that carries it.
  struct Shard {
    Segments segments;
    std::int64_t first = 0;
    std::int64_t elems = 0;
    std::int64_t bytes = 0;
    std::int64_t metadata_bytes = 0;
  };

  Shard make_shard(const Segments& segments, std::int64_t first) const;
  void plan_exchange();
  void plan_two_phases();
  void encode();
  void send_shards(const Lane::Groups& groups);
  void reduce();
  void gather_shards(const Lane::Groups& groups);
  void start_all_to_all(
      const Lane::Groups& groups,
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& receive_bytes,
      const std::vector<std::int64_t>& send_bytes);
  void decode();
  void finish(bool finite);

  bool is_own(std::size_t shard) const {
    return static_cast<int>(shard) == rank_;
  }
  float* floats(const Shard& shard) const {
    return run_->floats.data_ptr<float>() + shard.first;
  }
  codec::Feedback feedback(const Shard& shard) const {
    const auto& all = run_->use.feedback;
    return all.residual == nullptr ? codec::Feedback{}
                                   : codec::Feedback{
                                         all.residual + shard.first,
                                         all.next_residual + shard.first};
  }

  std::shared_ptr<const Codec> codec_;
  int rank_;
  int world_;
  std::int64_t first_;
  std::int64_t elems_;
  // One a rank; with two ranks one for both.
  std::vector<Shard> shards_;
  // What this rank encodes: messages for others one after another, and its own.
  at::Tensor outgoing_;
  at::Tensor own_;
  at::Tensor incoming_;
  std::vector<std::int64_t> send_bytes_;
  std::vector<std::int64_t> receive_bytes_;
  std::int64_t sent_metadata_ = 0;
  // What the owner sends back: its shard, once for every other rank, and the
  // shards of the others.
  at::Tensor reduced_;
  at::Tensor gathered_;
  std::int64_t reduced_metadata_ = 0;
  // One message a rank of what this rank adds up, in rank order.
  std::vector<Codec::ConstBytes> inputs_;

  std::shared_ptr<Run> run_;
  std::array<Future, 2> pending_;
};

Exchange::Chunk::Chunk(
    std::shared_ptr<const Codec> codec,
    const Layout& layout,
    std::int64_t first)
    : codec_(std::move(codec)),
      rank_(layout.rank),
      world_(layout.world),
      first_(first),
      elems_(codec::count_elems(layout.segments)),
      send_bytes_(layout.world),
      receive_bytes_(layout.world),
      inputs_(layout.world) {
  if (world_ == 2) {
    shards_.push_back(make_shard(layout.segments, first));
    plan_exchange();
    return;
  }
  for (const auto& part :
       codec::split(layout.segments, codec_->cut(), world_)) {
    shards_.push_back(make_shard(part, first));
    first += shards_.back().elems;
  }
  plan_two_phases();
}

Exchange::Chunk::Shard Exchange::Chunk::make_shard(
    const Segments& segments, std::int64_t first) const {
  const Bytes parts = codec_->message_parts(segments);
  return {
      segments,
      first,
      codec::count_elems(segments),
      parts.total(),
      parts.metadata};
}

// Both ranks send all of it.
void Exchange::Chunk::plan_exchange() {
  const Shard& all = shards_[0];
  const int peer = 1 - rank_;
  own_ = make_bytes(all.bytes);
  incoming_ = make_bytes(all.bytes);
  outgoing_ = own_;
  send_bytes_[peer] = receive_bytes_[peer] = all.bytes;
  sent_metadata_ = all.metadata_bytes;
  inputs_[rank_] = slice(own_, 0, all.bytes);
  inputs_[peer] = slice(incoming_, 0, all.bytes);
}

void Exchange::Chunk::plan_two_phases() {
  const Shard& mine = shards_[rank_];
  std::int64_t others = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (!is_own(i)) {
      send_bytes_[i] = shards_[i].bytes;
      receive_bytes_[i] = mine.bytes;
      others += shards_[i].bytes;
      sent_metadata_ += shards_[i].metadata_bytes;
    }
  }
  outgoing_ = make_bytes(others);
  own_ = make_bytes(mine.bytes);
  incoming_ = make_bytes((world_ - 1) * mine.bytes);
  reduced_ = make_bytes((world_ - 1) * mine.bytes);
  gathered_ = make_bytes(others);
  reduced_metadata_ = (world_ - 1) * mine.metadata_bytes;
  std::int64_t at = 0;
  for (int i = 0; i < world_; ++i) {
    if (i == rank_) {
      inputs_[i] = slice(own_, 0, mine.bytes);
    } else {
      inputs_[i] = slice(incoming_, at, mine.bytes);
      at += mine.bytes;
    }
  }
}

void Exchange::Chunk::run(std::size_t phase, const Lane::Groups& groups) {
  if (phase == 0) {
    encode();
    send_shards(groups);
    return;
  }
  if (phase == 1 && world_ > 2) {
    reduce();
    gather_shards(groups);
  } else {
    decode();
  }
}

void Exchange::Chunk::encode() {
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

// What goes to higher ranks and what goes to lower ones takes connections of
// its own. A receiver tells the sender that it is ready: on connections that
// carry data both ways this word would wait behind all that is on its way
// already.
void Exchange::Chunk::start_all_to_all(
    const Lane::Groups& groups,
    const at::Tensor& output,
    const at::Tensor& input,
    const std::vector<std::int64_t>& receive_bytes,
    const std::vector<std::int64_t>& send_bytes) {
  const auto lower = [&](std::vector<std::int64_t> bytes) {
    std::fill(bytes.begin() + rank_, bytes.end(), 0);
    return bytes;
  };
  const auto higher = [&](std::vector<std::int64_t> bytes) {
    std::fill(bytes.begin(), bytes.begin() + rank_, 0);
    return bytes;
  };
  const auto total = [](const std::vector<std::int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  };
  const auto from_lower = lower(receive_bytes);
  const auto to_lower = lower(send_bytes);
  const std::int64_t in = total(from_lower);
  const std::int64_t out = total(to_lower);
  pending_[0] = groups[0].all_to_all(
      output.narrow(0, 0, in),
      input.narrow(0, out, input.numel() - out),
      from_lower,
      higher(send_bytes));
  pending_[1] = groups[1].all_to_all(
      output.narrow(0, in, output.numel() - in),
      input.narrow(0, 0, out),
      higher(receive_bytes),
      to_lower);
}

void Exchange::Chunk::send_shards(const Lane::Groups& groups) {
  start_all_to_all(groups, incoming_, outgoing_, receive_bytes_, send_bytes_);
  count_as_metadata(groups[0], sent_metadata_);
}

void Exchange::Chunk::reduce() {
  const Shard& mine = shards_[rank_];
  codec_->reduce(
      mine.segments,
      inputs_,
      run_->use.divisor,
      slice(reduced_, 0, mine.bytes),
      feedback(mine).next_residual,
      run_->use.owner_noise);
  // Gloo wants what goes to different ranks in different places.
  const auto first = reduced_.narrow(0, 0, mine.bytes);
  for (int i = 1; i < world_ - 1; ++i) {
    reduced_.narrow(0, i * mine.bytes, mine.bytes).copy_(first);
  }
}

// To every rank directly: a ring would take W-1 turns, each a wake-up later.
void Exchange::Chunk::gather_shards(const Lane::Groups& groups) {
  start_all_to_all(groups, gathered_, reduced_, send_bytes_, receive_bytes_);
  count_as_metadata(groups[0], reduced_metadata_);
}

void Exchange::Chunk::decode() {
  bool finite = true;
  if (world_ == 2) {
    const Shard& all = shards_[0];
    finite =
        codec_->decode(all.segments, inputs_, floats(all), run_->use.divisor);
  } else {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const Shard& shard = shards_[i];
      const Codec::ConstBytes message = is_own(i)
                                            ? slice(reduced_, 0, shard.bytes)
                                            : slice(gathered_, at, shard.bytes);
      at += is_own(i) ? 0 : shard.bytes;
      finite &= codec_->decode(shard.segments, {&message, 1}, floats(shard));
    }
  }
  finish(finite);
}

void Exchange::Chunk::finish(bool finite) {
  const auto run = std::exchange(run_, nullptr);
  if (!run->floats.is_same(run->use.values)) {
    auto values = run->use.values.narrow(0, first_, elems_);
    values.copy_(run->floats.narrow(0, first_, elems_));
    // What fits into fp32 may be too large for the type of the values.
    finite = finite && values.isfinite().all().item<bool>();
  }
  if (!finite && run->use.not_finite) {
    *run->use.not_finite = true;
  }
  run->chunk_ended(nullptr);
}

std::vector<Lane::Phase> exchange_phases(int world) {
  if (world == 2) {
    return {{"all-to-all", 2}, {"decode", 0}};
  }
  return {{"all-to-all", 2}, {"all-gather", 2}, {"decode", 0}};
}

std::int64_t Exchange::count_chunks(const Codec& codec, const Layout& layout) {
  if (codec.has_one_scale()) {
    return 1;
  }
  const std::size_t bytes = codec.message_bytes(layout.segments);
  return static_cast<std::int64_t>(
      std::max<std::size_t>(1, (bytes + kChunkBytes / 2) / kChunkBytes));
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
  auto run = std::make_shared<Run>();
  run->result =
      c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
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
