#pragma once

// Private to gradwire: what a Group is made of.

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <mutex>

#include "gradwire/base/process.h"
#include "gradwire/comm/group.h"
#include "gradwire/comm/transport_impl.h"

namespace gradwire {

struct GroupOptions {
  std::string name = "world";
  std::chrono::milliseconds timeout{};
  // A name of transports().
  std::string transport = "gloo";
  // How this rank connects, see TransportOptions.
  std::string interface = {};
  std::string address = {};
  BackendPtr like = {};
  // Where sent bytes are counted; null: in a meter of the group's own.
  std::shared_ptr<ByteMeter> meter = {};
};

class CompressedCalls;
// Whether the calling thread is one that works for these calls.
bool is_own_thread(const CompressedCalls& calls);
// Whether compressed_all_reduce returns at once, as all but the first call do.
bool is_connected_for_compressed(const Group& group);

struct Group::Impl {
  HomeProcess home;
  GroupOptions options;
  StorePtr store;
  Origin origin;
  std::shared_ptr<ByteMeter> meter;
  std::shared_ptr<Transport> transport;
  // The same as the Reducer wants it.
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

// See part_of(), which checks. Collective over each part.
Group make_part(const Group& group, const std::vector<std::vector<int>>& parts);

// An all-to-all of messages: kByte tensors that are contiguous, counts in
// bytes, one a rank. Of what this rank sends to others `metadata_bytes` count
// as metadata, the rest as payload. The result is of no use but to be waited
// for.
Future all_to_all_messages(
    const Group& group,
    at::Tensor output,
    at::Tensor input,
    std::vector<std::int64_t> output_bytes,
    std::vector<std::int64_t> input_bytes,
    std::int64_t metadata_bytes);

// Connects `world` ranks that share `store`. Collective.
Group make_group(
    StorePtr store, int rank, int world, const GroupOptions& options);

}  // namespace gradwire
