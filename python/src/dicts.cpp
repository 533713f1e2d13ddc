#include "python/src/dicts.h"

#include <ATen/core/Tensor.h>

namespace gradwire::python {
namespace {

// A key that every saved dictionary has.
template <class T>
T get(const py::dict& dict, const char* key) {
  if (!dict.contains(key)) {
    throw Refusal(concat(
        "the hook state has no '",
        key,
        "', expected one from hook_state_dict"));
  }
  try {
    return dict[key].cast<T>();
  } catch (const py::cast_error&) {
    throw Refusal(concat(
        "'", key, "' of the hook state is of another type than was saved"));
  }
}

constexpr std::int64_t kDictVersion = 1;

}  // namespace

py::dict to_dict(const Bytes& bytes) {
  py::dict dict;
  dict["payload"] = bytes.payload;
  dict["metadata"] = bytes.metadata;
  return dict;
}

py::dict to_dict(const HookState& state) {
  py::dict dict;
  dict["numbers"] = state.numbers;
  dict["shared"] = state.shared;
  dict["residuals"] = state.residuals;
  return dict;
}

py::dict to_dict(const HookRecord& record) {
  py::dict dict = to_dict(record.state);
  dict["version"] = kDictVersion;
  dict["save"] = record.save;
  dict["hook"] = record.owner.hook;
  dict["parameters"] = record.owner.parameters;
  dict["world"] = record.world;
  dict["rank"] = record.rank;
  dict["layout"] = record.layout;
  return dict;
}

HookState to_state(const py::dict& dict) {
  HookState state;
  state.numbers = get<std::map<std::string, std::int64_t>>(dict, "numbers");
  state.shared = get<std::map<std::string, at::Tensor>>(dict, "shared");
  state.residuals = get<std::map<std::string, at::Tensor>>(dict, "residuals");
  return state;
}

HookRecord to_record(const py::dict& dict) {
  const auto version = get<std::int64_t>(dict, "version");
  if (version != kDictVersion) {
    throw Refusal(concat(
        "the hook state is of version ", version, ", expected ", kDictVersion));
  }
  HookRecord record;
  record.save = get<std::int64_t>(dict, "save");
  record.owner.hook = get<std::string>(dict, "hook");
  record.owner.parameters =
      get<std::map<std::string, std::int64_t>>(dict, "parameters");
  record.world = get<std::int64_t>(dict, "world");
  record.rank = get<std::int64_t>(dict, "rank");
  record.layout = get<BucketLayout>(dict, "layout");
  record.state = to_state(dict);
  return record;
}

}  // namespace gradwire::python
