#include "gradwire/ddp/hook_record.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include <sstream>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

constexpr std::int64_t kVersion = 2;

c10::IValue to_dict(const std::map<std::string, std::int64_t>& values) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::IntType::get());
  for (const auto& [name, value] : values) {
    dict.insert(name, value);
  }
  return dict;
}

c10::IValue to_dict(const std::map<std::string, at::Tensor>& values) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
  for (const auto& [name, value] : values) {
    dict.insert(name, value);
  }
  return dict;
}

std::map<std::string, at::Tensor> to_tensors(const c10::IValue& dict) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : dict.toGenericDict()) {
    values[item.key().toStringRef()] = item.value().toTensor();
  }
  return values;
}

std::map<std::string, std::int64_t> to_map(const c10::IValue& dict) {
  std::map<std::string, std::int64_t> values;
  for (const auto& item : dict.toGenericDict()) {
    values[item.key().toStringRef()] = item.value().toInt();
  }
  return values;
}

}  // namespace

std::string to_bytes(const HookRecord& record) {
  torch::serialize::OutputArchive archive;
  archive.write("version", c10::IValue(kVersion));
  archive.write("save", c10::IValue(record.save));
  archive.write("hook", c10::IValue(record.owner.hook));
  archive.write("world", c10::IValue(record.world));
  archive.write("rank", c10::IValue(record.rank));
  archive.write("parameters", to_dict(record.owner.parameters));
  archive.write("layout", c10::IValue(record.layout));
  archive.write("numbers", to_dict(record.state.numbers));
  archive.write("shared", to_dict(record.state.shared));
  archive.write("residuals", to_dict(record.state.residuals));
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

HookRecord read_record(const std::string& path) {
  torch::serialize::InputArchive archive;
  HookRecord record;
  c10::IValue version;
  c10::IValue save;
  c10::IValue hook;
  c10::IValue world;
  c10::IValue rank;
  c10::IValue parameters;
  c10::IValue layout;
  c10::IValue numbers;
  c10::IValue shared;
  c10::IValue residuals;
  archive.load_from(path);
  archive.read("version", version);
  if (version.toInt() != kVersion) {
    fail(
        "ddp",
        "hook state '",
        path,
        "' is of version ",
        version.toInt(),
        ", expected ",
        kVersion);
  }
  archive.read("save", save);
  archive.read("hook", hook);
  archive.read("world", world);
  archive.read("rank", rank);
  archive.read("parameters", parameters);
  archive.read("layout", layout);
  archive.read("numbers", numbers);
  archive.read("shared", shared);
  archive.read("residuals", residuals);
  record.save = save.toInt();
  record.owner.hook = hook.toStringRef();
  record.world = world.toInt();
  record.rank = rank.toInt();
  record.owner.parameters = to_map(parameters);
  for (const c10::IValue& indices : layout.toListRef()) {
    record.layout.push_back(indices.toIntVector());
  }
  record.state.numbers = to_map(numbers);
  record.state.shared = to_tensors(shared);
  record.state.residuals = to_tensors(residuals);
  return record;
}

}  // namespace gradwire
