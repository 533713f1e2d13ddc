#include "gradwire/comm/compressed.h"

#include <ATen/ops/as_strided.h>

#include <map>
#include <mutex>

#include "gradwire/base/error.h"
#include "gradwire/comm/exchanges.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/comm/roll_call.h"

namespace gradwire {
namespace {

// What buffers of tensors seen before may take, if they are not in use.
constexpr std::int64_t kKeptBytes = 256 << 20;

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

// What compressed_all_reduce keeps of one group from call to call.
class CompressedCalls {
 public:
  explicit CompressedCalls(const Group& group)
      : exchanges_(group, kKeptBytes),
        roll_call_(group),
        lane_(group, "compressed_all_reduce", exchange_phases(group.size())) {}

  Future start(const std::string& spec, Exchange::Use use) {
    const std::lock_guard lock(mutex_);
    const Codec& codec = find(spec);
    const std::int64_t elems = use.values.numel();
    use.asked = concat(
        codec.spec,
        " of ",
        elems,
        " elements",
        use.divisor > 1 ? ", averaged" : "");
    return roll_call_.named(exchanges_.start(
        lane_, {codec.codec, {{elems, 0, 0}}, ++calls_}, std::move(use)));
  }

  bool is_own_thread() const {
    return lane_.is_own_thread();
  }

 private:
  struct Codec {
    // As all ranks would write it.
    std::string spec;
    Exchanges::CodecPtr codec;
  };

  const Codec& find(const std::string& spec) {
    Codec& found = codecs_[spec];
    if (!found.codec) {
      found.spec = codec::check_codec_spec(spec);
      found.codec =
          std::make_shared<const codec::Codec>(codec::make_codec(spec));
    }
    return found;
  }

  std::mutex mutex_;
  std::uint64_t calls_ = 0;
  std::map<std::string, Codec> codecs_;
  Exchanges exchanges_;
  RollCall roll_call_;
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
  // In the order of memory, whatever the strides.
  const at::Tensor flat = tensor.detach().as_strided(
      {tensor.numel()}, {1}, tensor.storage_offset());
  const bool average = reduction == Reduction::kAverage;
  return calls->start(
      codec,
      {.values = flat,
       .result = std::move(tensor),
       .divisor = average ? static_cast<float>(group.size()) : 1.0f});
}

}  // namespace gradwire
