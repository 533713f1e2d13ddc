#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gradwire/hook/hook.h"

namespace gradwire {

// Indices of parameters, bucket by bucket.
using BucketLayout = std::vector<std::vector<std::int64_t>>;

// What a hook's state, or that of something else with such a state, belongs to.
struct HookOwner {
  // Its spec.
  std::string hook;
  // Names, and numbers in gradients: Parameter::reals().
  std::map<std::string, std::int64_t> parameters;
  // How its files begin. Not part of a record.
  std::string file = "hook-state";
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

// A record as it lies in a file, and back. The bytes may come from anywhere:
// what is damaged, of another version or no hook state is an Error that names
// `where`, and no byte is taken for code.
std::string encode_record(const HookRecord& record);
HookRecord decode_record(const std::string& bytes, const std::string& where);
// The same from a file.
HookRecord read_record(const std::string& path);

}  // namespace gradwire
