#pragma once

// Private to gradwire: what a Group is made of.

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <mutex>

#include "gradwire/comm/group.h"

namespace gradwire {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Which rank of which group speaks: named in errors.
struct Origin {
  std::string group;
  int rank = 0;
  int world = 1;
};

struct GroupOptions {
  std::string name = "world";
  std::chrono::milliseconds timeout{};
  // How to bind this rank's sockets, see compat::GlooOptions.
  std::string interface = {};
  std::string address = {};
  c10::intrusive_ptr<c10d::Backend> like = {};
  // Where sent bytes are counted; null: in a meter of the group's own.
  std::shared_ptr<ByteMeter> meter = {};
};

class CompressedCalls;
// Whether the calling thread is one that works for these calls.
bool is_own_thread(const CompressedCalls& calls);
// Whether compressed_all_reduce returns at once, as all but the first call do.
bool is_connected_for_compressed(const Group& group);

struct Group::Impl {
  GroupOptions options;
  StorePtr store;
  Origin origin;
  std::shared_ptr<ByteMeter> meter;
  c10::intrusive_ptr<c10d::Backend> backend;
  // The same backend as the Reducer wants it.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  // Number the groups made from this one and the agreements held on it. All
  // ranks count alike because both are collective.
  std::atomic<int> children{0};
  std::atomic<int> agreements{0};
  // What compressed_all_reduce keeps from call to call; made by the first one.
  std::shared_ptr<CompressedCalls> compressed;
  // Of `compressed`, while it is looked at or set.
  std::mutex mutex;
};

// As Group::duplicate, with what is sent counted as the parent's. Collective.
Group duplicate_counted(const Group& parent, const std::string& label);

// Connects `world` ranks that share `store`. Collective.
Group make_group(
    StorePtr store, int rank, int world, const GroupOptions& options);

}  // namespace gradwire
