#include "gradwire/comm/compressed.h"

#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <mutex>

#include "gradwire/base/error.h"
#include "gradwire/comm/exchange.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

// So many exchanges are kept for tensors of sizes seen before.
constexpr std::size_t kKeptExchanges = 16;

void check(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() ||
      tensor.layout() != at::kStrided ||
      !tensor.is_non_overlapping_and_dense()) {
    fail(
        "comm",
        "compressed_all_reduce got a tensor that is undefined, not on the cpu, "
        "sparse or with holes, expected one that is dense in memory");
  }
  const auto type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kHalf &&
      type != at::kBFloat16) {
    fail(
        "comm",
        "compressed_all_reduce got ",
        type,
        ", expected Float, Double, Half or BFloat16");
  }
}

}  // namespace

// The lane and the buffers of one group's calls.
class CompressedCalls {
 public:
  explicit CompressedCalls(const Group& group)
      : rank_(group.rank()),
        world_(group.size()),
        lane_(group, "compressed", exchange_phases(group.size())) {}

  Future start(const std::string& spec, at::Tensor flat, float divisor) {
    const std::lock_guard lock(mutex_);
    Exchange& exchange = find(spec, flat.numel());
    ++calls_;
    return exchange.start(
        lane_,
        {.values = std::move(flat),
         .divisor = divisor,
         .noise =
             codec::Noise::make({calls_, static_cast<unsigned>(rank_ + 1)}),
         .owner_noise = codec::Noise::make({calls_, 0})});
  }

  bool is_own_thread() const {
    return lane_.is_own_thread();
  }

 private:
  struct Kept {
    std::string spec;
    std::int64_t elems = 0;
    std::unique_ptr<Exchange> exchange;
  };

  Exchange& find(const std::string& spec, std::int64_t elems) {
    const auto found = std::ranges::find_if(kept_, [&](const Kept& kept) {
      return kept.spec == spec && kept.elems == elems && kept.exchange->idle();
    });
    if (found != kept_.end()) {
      return *found->exchange;
    }
    if (kept_.size() >= kKeptExchanges) {
      const auto idle = std::ranges::find_if(
          kept_, [](const Kept& kept) { return kept.exchange->idle(); });
      if (idle != kept_.end()) {
        kept_.erase(idle);
      }
    }
    auto codec = std::make_shared<const codec::Codec>(codec::make_codec(spec));
    kept_.push_back(
        {spec,
         elems,
         std::make_unique<Exchange>(
             std::move(codec),
             Exchange::Layout{rank_, world_, {{elems, 0, 0}}})});
    return *kept_.back().exchange;
  }

  int rank_;
  int world_;
  std::mutex mutex_;
  std::uint64_t calls_ = 0;
  std::vector<Kept> kept_;
  // Last, so that its threads end before what they work on.
  Lane lane_;
};

bool is_own_thread(const CompressedCalls& calls) {
  return calls.is_own_thread();
}

namespace {

std::shared_ptr<CompressedCalls> find_calls(const Group& group) {
  const std::lock_guard lock(group.impl().mutex);
  return group.impl().compressed;
}

// Connects without the lock: it takes as long as the slowest rank.
std::shared_ptr<CompressedCalls> find_or_make_calls(const Group& group) {
  if (auto calls = find_calls(group)) {
    return calls;
  }
  auto made = std::make_shared<CompressedCalls>(group);
  const std::lock_guard lock(group.impl().mutex);
  group.impl().compressed = made;
  return made;
}

}  // namespace

bool is_connected_for_compressed(const Group& group) {
  return group.size() == 1 || find_calls(group) != nullptr;
}

Future compressed_all_reduce(
    const Group& group,
    at::Tensor tensor,
    const std::string& codec,
    Reduction reduction) {
  check(tensor);
  codec::make_codec(codec);
  if (group.size() == 1) {
    return Future::ready(std::move(tensor));
  }
  const auto calls = find_or_make_calls(group);
  const float divisor =
      reduction == Reduction::kAverage ? static_cast<float>(group.size()) : 1;
  // In the order of memory, whatever the strides.
  const at::Tensor flat = tensor.detach().as_strided(
      {tensor.numel()}, {1}, tensor.storage_offset());
  return calls->start(codec, flat, divisor).then([tensor](const at::Tensor&) {
    return tensor;
  });
}

}  // namespace gradwire
