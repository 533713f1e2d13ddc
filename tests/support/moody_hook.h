#pragma once

#include <stdexcept>

#include "gradwire/comm/group.h"
#include "gradwire/hook/bucket.h"

namespace gradwire::test {

// Averages, and throws in one bucket while `fail_now`, which must outlive it.
inline auto moody_hook(
    const Group& group, const bool& fail_now, std::size_t bucket_index) {
  return [group, &fail_now, bucket_index](Bucket& bucket) {
    if (fail_now && bucket.index() == bucket_index) {
      throw std::runtime_error("bad mood");
    }
    bucket.buffer().div_(group.size());
    return group.all_reduce(bucket.buffer());
  };
}

}  // namespace gradwire::test
