#include "gradwire/hook/hook_state.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <random>
#include <set>

#include "gradwire/base/error.h"
#include "gradwire/base/files.h"
#include "gradwire/comm/agreement.h"

namespace gradwire {
namespace {

namespace fs = std::filesystem;

std::string file_of(
    const std::string& folder, std::int64_t rank, const HookOwner& owner) {
  return fs::path(folder) / concat(owner.file, ".rank", rank);
}

[[noreturn]] void reject(const std::string& where, const std::string& why) {
  fail("hook", "hook state ", where, " ", why);
}

std::string quoted(const std::string& text) {
  return concat("'", text, "'");
}

HookRecord read_file(const std::string& path) {
  if (!fs::exists(path)) {
    reject(quoted(path), "does not exist");
  }
  return read_record(path);
}

void check_model(
    const std::string& where,
    const HookOwner& theirs,
    const HookOwner& expected) {
  const auto refuse = [&](const auto&... why) {
    reject(where, concat("is of another model: parameter '", why...));
  };
  for (const auto& [name, elems] : expected.parameters) {
    const auto found = theirs.parameters.find(name);
    if (found == theirs.parameters.end()) {
      refuse(name, "' is missing there");
    }
    if (found->second != elems) {
      refuse(
          name, "' has ", found->second, " elements there, expected ", elems);
    }
  }
  for (const auto& [name, elems] : theirs.parameters) {
    if (!expected.parameters.contains(name)) {
      refuse(name, "' is only there");
    }
  }
}

// Every parameter is in one bucket.
void check_layout(
    const std::string& where, const BucketLayout& layout, std::size_t count) {
  std::set<std::int64_t> seen;
  std::size_t total = 0;
  for (const auto& bucket : layout) {
    seen.insert(bucket.begin(), bucket.end());
    total += bucket.size();
  }
  const auto last = static_cast<std::int64_t>(count) - 1;
  if (total != count || seen.size() != count || *seen.begin() != 0 ||
      *seen.rbegin() != last) {
    reject(where, concat("has no buckets for ", count, " parameters"));
  }
}

void check_residuals(
    const std::string& where, const HookState& state, const HookOwner& owner) {
  for (const auto& [name, residual] : state.residuals) {
    const auto found = owner.parameters.find(name);
    if (found != owner.parameters.end() && residual.numel() != found->second) {
      reject(
          where,
          concat(
              "has a residual of ",
              residual.numel(),
              " elements for parameter '",
              name,
              "', expected ",
              found->second));
    }
  }
}

void check_record(
    const std::string& where,
    const HookRecord& record,
    std::int64_t rank,
    const HookOwner& owner) {
  if (record.owner.hook != owner.hook) {
    reject(
        where,
        concat(
            "is of hook '",
            record.owner.hook,
            "', expected '",
            owner.hook,
            "'"));
  }
  if (record.rank != rank) {
    reject(where, concat("is of rank ", record.rank, ", expected ", rank));
  }
  check_model(where, record.owner, owner);
  check_layout(where, record.layout, owner.parameters.size());
  check_residuals(where, record.state, owner);
}

HookRecord read_checked(
    const std::string& folder, std::int64_t rank, const HookOwner& owner) {
  const std::string path = file_of(folder, rank, owner);
  HookRecord record = read_file(path);
  check_record(quoted(path), record, rank, owner);
  return record;
}

void check_same_save(
    const std::string& path,
    const HookRecord& record,
    const HookRecord& first) {
  if (record.save != first.save) {
    reject(
        quoted(path),
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
    const std::string& folder,
    const HookOwner& owner,
    const LoadHookState& options,
    std::int64_t& world) {
  const HookRecord first = read_checked(folder, 0, owner);
  if (first.world != group.size() && options.strict) {
    reject(
        quoted(file_of(folder, 0, owner)),
        concat("is of a world of ", first.world, ", expected ", group.size()));
  }
  SavedHook share{first.layout, {first.state.numbers, first.state.shared, {}}};
  for (std::int64_t rank = group.rank(); rank < first.world;
       rank += group.size()) {
    const HookRecord record = read_checked(folder, rank, owner);
    check_same_save(file_of(folder, rank, owner), record, first);
    add_residuals(share.state, record.state);
    if (first.world == group.size()) {
      share.state.shared = record.state.shared;
    }
  }
  world = first.world;
  return share;
}

// One that no other save has. Collective.
std::int64_t draw_save(const Group& group) {
  std::random_device random;
  const auto number = static_cast<std::int64_t>(
      (std::uint64_t{random()} << 32) | std::uint64_t{random()});
  return std::stoll(share(group, "hook state", concat(number)));
}

HookRecord make_record(
    const Group& group,
    std::int64_t save,
    const HookOwner& owner,
    SavedHook saved) {
  return {
      save,
      owner,
      group.size(),
      group.rank(),
      std::move(saved.layout),
      std::move(saved.state)};
}

}  // namespace

std::vector<Fact> facts_of(const HookState& state) {
  std::vector<Fact> facts;
  facts.reserve(state.numbers.size());
  for (const auto& [name, number] : state.numbers) {
    facts.push_back({name, concat(number)});
  }
  return facts;
}

void save_hook_state(
    const Group& group,
    const std::string& folder,
    const HookOwner& owner,
    const std::function<SavedHook()>& take) {
  const std::int64_t save = draw_save(group);
  agree_checked(group, "save_hook_state", [&] {
    const HookRecord record = make_record(group, save, owner, take());
    check_writable_folder(folder);
    write_atomically(
        file_of(folder, group.rank(), owner), encode_record(record));
    return std::vector<Fact>{{"hook", owner.hook}};
  });
}

SavedHook load_hook_state(
    const Group& group,
    const std::string& folder,
    const HookOwner& owner,
    const LoadHookState& options,
    const AcceptState& accept) {
  SavedHook share;
  agree_checked(group, "load_hook_state", [&] {
    std::int64_t world = 0;
    share = read_share(group, folder, owner, options, world);
    accept(share.state);
    auto facts = facts_of(share.state);
    facts.push_back({"world of the save", concat(world)});
    return facts;
  });
  return share;
}

HookRecord take_hook_state(
    const Group& group,
    const HookOwner& owner,
    const std::function<SavedHook()>& take) {
  const std::int64_t save = draw_save(group);
  HookRecord record;
  agree_checked(group, "hook_state_dict", [&] {
    record = make_record(group, save, owner, take());
    return std::vector<Fact>{{"hook", owner.hook}};
  });
  return record;
}

SavedHook give_hook_state(
    const Group& group,
    const HookOwner& owner,
    const std::function<HookRecord()>& find_record,
    const AcceptState& accept) {
  HookRecord record;
  agree_checked(group, "load_hook_state_dict", [&] {
    record = find_record();
    const std::string where = "of this rank";
    if (record.world != group.size()) {
      reject(
          where,
          concat(
              "is of a world of ",
              record.world,
              ", expected ",
              group.size(),
              ": save_hook_state keeps states for other worlds"));
    }
    check_record(where, record, group.rank(), owner);
    accept(record.state);
    auto facts = facts_of(record.state);
    facts.push_back({"save", concat(record.save)});
    return facts;
  });
  return {std::move(record.layout), std::move(record.state)};
}

}  // namespace gradwire
