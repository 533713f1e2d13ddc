#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/bytes.h"
#include "gradwire/comm/future.h"

namespace gradwire {

enum class ReduceOp { kSum, kMin, kMax, kProduct };

// Ranks that can talk to each other. A value: copies are the same group.
//
// The collectives return at once; the Future holds the result. All ranks of
// the group must submit the same collectives in the same order with tensors of
// equal type, and leave a tensor alone until its Future is done. Thread safe as
// far as that order is kept: submit from one thread, or lock around it.
class Group {
 public:
  struct Impl;

  // The empty group: what subgroup() returns to ranks outside of it. Only
  // operator bool may be called on it.
  Group() = default;
  explicit Group(std::shared_ptr<Impl> impl);

  explicit operator bool() const {
    return impl_ != nullptr;
  }

  int rank() const;
  int size() const;
  const std::string& name() const;
  std::chrono::milliseconds timeout() const;
  // Where the tensors of collectives are.
  c10::Device device() const;

  // The ranks given, numbered by their place in the list. Collective over this
  // group: every rank calls it with the same list. Throws Error on every rank
  // when the lists differ.
  Group subgroup(
      const std::vector<int>& ranks,
      std::optional<std::chrono::milliseconds> timeout = {}) const;

  // The same ranks with connections of their own: nothing submitted here can
  // pair up with what is submitted there. Collective.
  Group duplicate(const std::string& label) const;

  // In place. The tensor must be dense in memory, or sparse COO with kSum; the
  // Future of a sparse tensor holds a new one.
  Future all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::kSum) const;
  // In place: every rank gets root's values.
  Future broadcast(at::Tensor tensor, int root = 0) const;
  // `output` has size() times the elements of `input`; both contiguous.
  Future all_gather(at::Tensor output, at::Tensor input) const;
  // Rows (dimension 0) change places: the first input_rows[0] rows go to rank
  // 0 and so on; empty counts mean equal shares. Both contiguous.
  Future all_to_all(
      at::Tensor output,
      at::Tensor input,
      std::vector<std::int64_t> output_rows = {},
      std::vector<std::int64_t> input_rows = {}) const;
  Future barrier() const;

  // What this rank has handed to the transport on this group so far.
  Bytes bytes_sent() const;
  // What this rank would hand over in an all-reduce of dense elements.
  std::int64_t all_reduce_bytes(
      std::int64_t elems, std::int64_t elem_bytes) const;

  // For the rooms above comm; see group_impl.h.
  Impl& impl() const;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace gradwire
