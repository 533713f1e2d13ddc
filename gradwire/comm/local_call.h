#pragma once

// Private to comm: collectives among tensors of one address space.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "gradwire/comm/group.h"

namespace gradwire {

// What one rank brings to a collective.
struct LocalCall {
  enum class Kind { kAllReduce, kBroadcast, kAllGather, kAllToAll, kBarrier };

  Kind kind = Kind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  // In place: the same tensor twice.
  at::Tensor input = {};
  at::Tensor output = {};
  // Of an all-to-all, in bytes, one a rank.
  std::vector<std::int64_t> input_bytes = {};
  std::vector<std::int64_t> output_bytes = {};
};

// "all_reduce"
const char* name_of(LocalCall::Kind kind);

// In what the calls of all ranks do not fit together, "" if they do: the first
// rank that differs from rank 0, or the first pair with different counts.
std::string difference(const std::vector<LocalCall>& calls);

// Does the work for all ranks, whose calls fit together. Sums are taken in
// rank order. Returns the results, one list a rank.
std::vector<std::vector<at::Tensor>> perform(
    const std::vector<LocalCall>& calls);

}  // namespace gradwire
