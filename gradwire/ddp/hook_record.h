#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gradwire/hook/hook.h"

namespace gradwire {

// Indices of parameters, bucket by bucket.
using BucketLayout = std::vector<std::vector<std::int64_t>>;

// What a hook's state belongs to.
struct HookOwner {
  // Its spec.
  std::string hook;
  // Names and elements.
  std::map<std::string, std::int64_t> parameters;
};

// One rank's part of a saved state.
struct HookRecord {
  // Drawn anew for every save, the same in the records of all ranks.
  std::int64_t save = 0;
  HookOwner owner;
  std::int64_t world = 0;
  std::int64_t rank = 0;
  BucketLayout layout;
  HookState state;
};

// As it lies in a file.
std::string to_bytes(const HookRecord& record);
// Throws Error for another version, and what Torch throws for a file that is
// none.
HookRecord read_record(const std::string& path);

}  // namespace gradwire
