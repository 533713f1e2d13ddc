#include "gradwire/ddp/hook_state.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include <filesystem>
#include <random>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/base/files.h"
#include "gradwire/comm/agreement.h"

namespace gradwire {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVersion = 2;

// One rank's file.
struct StateFile {
  // Drawn anew for every save, the same in the files of all ranks.
  std::int64_t save = 0;
  std::string hook;
  std::int64_t world = 0;
  std::int64_t rank = 0;
  std::map<std::string, std::int64_t> parameters;
  BucketLayout layout;
  HookState state;
};

fs::path file_of(const std::string& folder, std::int64_t rank) {
  return fs::path(folder) / concat("hook-state.rank", rank);
}

[[noreturn]] void reject(const fs::path& file, const std::string& why) {
  fail("ddp", "hook state '", file.string(), "' ", why);
}

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

std::string to_bytes(const StateFile& file) {
  torch::serialize::OutputArchive archive;
  archive.write("version", c10::IValue(kVersion));
  archive.write("save", c10::IValue(file.save));
  archive.write("hook", c10::IValue(file.hook));
  archive.write("world", c10::IValue(file.world));
  archive.write("rank", c10::IValue(file.rank));
  archive.write("parameters", to_dict(file.parameters));
  archive.write("layout", c10::IValue(file.layout));
  archive.write("numbers", to_dict(file.state.numbers));
  archive.write("shared", to_dict(file.state.shared));
  archive.write("residuals", to_dict(file.state.residuals));
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

StateFile parse(const fs::path& path) {
  torch::serialize::InputArchive archive;
  StateFile file;
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
  archive.load_from(path.string());
  archive.read("version", version);
  if (version.toInt() != kVersion) {
    reject(
        path,
        concat("is of version ", version.toInt(), ", expected ", kVersion));
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
  file.save = save.toInt();
  file.hook = hook.toStringRef();
  file.world = world.toInt();
  file.rank = rank.toInt();
  file.parameters = to_map(parameters);
  for (const c10::IValue& indices : layout.toListRef()) {
    file.layout.push_back(indices.toIntVector());
  }
  file.state.numbers = to_map(numbers);
  file.state.shared = to_tensors(shared);
  file.state.residuals = to_tensors(residuals);
  return file;
}

StateFile read_file(const fs::path& path) {
  if (!fs::exists(path)) {
    reject(path, "does not exist");
  }
  try {
    return parse(path);
  } catch (const c10::Error&) {
    reject(path, "is damaged or not a hook state");
  }
}

void check_model(
    const fs::path& path, const StateFile& file, const HookStatePlace& place) {
  const auto refuse = [&](const auto&... why) {
    reject(path, concat("is of another model: parameter '", why...));
  };
  for (const auto& [name, elems] : place.parameters) {
    const auto found = file.parameters.find(name);
    if (found == file.parameters.end()) {
      refuse(name, "' is missing there");
    }
    if (found->second != elems) {
      refuse(
          name, "' has ", found->second, " elements there, expected ", elems);
    }
  }
  const std::map<std::string, std::int64_t> known(
      place.parameters.begin(), place.parameters.end());
  for (const auto& [name, elems] : file.parameters) {
    if (!known.contains(name)) {
      refuse(name, "' is only there");
    }
  }
}

StateFile read_checked(std::int64_t rank, const HookStatePlace& place) {
  const fs::path path = file_of(place.folder, rank);
  StateFile file = read_file(path);
  if (file.hook != place.hook) {
    reject(
        path,
        concat("is of hook '", file.hook, "', expected '", place.hook, "'"));
  }
  if (file.rank != rank) {
    reject(path, concat("is of rank ", file.rank, ", expected ", rank));
  }
  check_model(path, file, place);
  return file;
}

void check_same_save(
    const fs::path& path, const StateFile& file, const StateFile& first) {
  if (file.save != first.save) {
    reject(
        path,
        "was not saved together with that of rank 0: saving was broken off");
  }
}

void add_residuals(HookState& to, const HookState& from) {
  for (const auto& [name, residual] : from.residuals) {
    const auto known = to.residuals.find(name);
    if (known == to.residuals.end()) {
      to.residuals[name] = residual.clone();
    } else {
      known->second.add_(residual);
    }
  }
}

// This rank's share of what all files hold.
SavedHook read_share(
    const Group& group,
    const HookStatePlace& place,
    const LoadHookState& options,
    std::vector<Fact>& facts) {
  const StateFile first = read_checked(0, place);
  if (first.world != group.size() && options.strict) {
    reject(
        file_of(place.folder, 0),
        concat("is of a world of ", first.world, ", expected ", group.size()));
  }
  SavedHook share{first.layout, {first.state.numbers, first.state.shared, {}}};
  for (std::int64_t rank = group.rank(); rank < first.world;
       rank += group.size()) {
    const StateFile file = read_checked(rank, place);
    check_same_save(file_of(place.folder, rank), file, first);
    add_residuals(share.state, file.state);
  }
  facts.push_back({"world of the save", concat(first.world)});
  for (const auto& [name, number] : share.state.numbers) {
    facts.push_back({name, concat(number)});
  }
  return share;
}

// One that no other save has. Collective.
std::int64_t draw_save(const Group& group) {
  std::random_device random;
  const auto number = static_cast<std::int64_t>(
      (std::uint64_t{random()} << 32) | std::uint64_t{random()});
  const at::Tensor shared = at::full({1}, number, at::kLong);
  group.broadcast(shared).wait();
  return shared.item<std::int64_t>();
}

}  // namespace

void save_hook_state(
    const Group& group,
    const HookStatePlace& place,
    const std::function<SavedHook()>& take) {
  const std::int64_t save = draw_save(group);
  agree_checked(group, "save_hook_state", [&] {
    SavedHook saved = take();
    check_writable_folder(place.folder);
    write_atomically(
        file_of(place.folder, group.rank()),
        to_bytes(
            {save,
             place.hook,
             group.size(),
             group.rank(),
             {place.parameters.begin(), place.parameters.end()},
             std::move(saved.layout),
             std::move(saved.state)}));
    return std::vector<Fact>{{"hook", place.hook}};
  });
}

SavedHook load_hook_state(
    const Group& group,
    const HookStatePlace& place,
    const LoadHookState& options,
    const std::function<void()>& check) {
  SavedHook share;
  agree_checked(group, "load_hook_state", [&] {
    check();
    std::vector<Fact> facts;
    share = read_share(group, place, options, facts);
    return facts;
  });
  return share;
}

}  // namespace gradwire
