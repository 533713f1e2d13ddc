#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "gradwire/comm/group.h"

namespace gradwire::apps {

// A point from which training can continue. `facts` say what it belongs to
// (model, seed, batch) and must be equal when it is loaded; `state` is what
// pack_state() returned.
struct Checkpoint {
  std::map<std::string, std::string> facts;
  std::int64_t step = 0;
  std::string state;
};

std::filesystem::path checkpoint_file(const std::filesystem::path& folder);

// The folder of the hook's state that belongs to a checkpoint. Its name has the
// step, so a crash between the two saves leaves the older pair intact.
std::filesystem::path hook_state_folder(
    const std::filesystem::path& folder, std::int64_t step);
// Removes the hook's states that are older than this step.
void remove_older_hook_states(
    const std::filesystem::path& folder, std::int64_t step);

// Replaces the checkpoint in `folder` atomically.
void save_checkpoint(
    const std::filesystem::path& folder, const Checkpoint& checkpoint);

// Throws Error that names the file and the reason when it is missing,
// truncated, damaged, not a checkpoint, or belongs to something else.
Checkpoint load_checkpoint(
    const std::filesystem::path& folder,
    const std::map<std::string, std::string>& expected_facts);

// Runs `read` on rank 0 and gives every rank the bytes it returned, or throws
// on every rank what it threw there. Collective.
std::string share_from_rank0(
    const Group& group, const std::function<std::string()>& read);

}  // namespace gradwire::apps
