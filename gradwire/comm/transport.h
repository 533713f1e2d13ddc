#pragma once

// Private to gradwire: how the ranks of one group move tensors.

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/bytes.h"
#include "gradwire/comm/group.h"

namespace gradwire {

// Which rank of which group speaks: named in errors.
struct Origin {
  std::string group;
  int rank = 0;
  int world = 1;
};

// "[gradwire.comm] broadcast on group 'world' failed on rank 1 of 4: ...", a
// CommError.
std::exception_ptr collective_failure(
    const Origin& origin, const char* operation, const std::string& what);

// One group's connections: ordered collectives on tensors of one device.
//
// All ranks submit the same collectives in the same order. Each returns at
// once; its Future holds a list of tensors, the result first, or an empty list.
// A failure is a CommError that names the group and this rank. What a
// collective sends from this rank is counted when it is submitted, by the
// formulas of the transport.
//
// Thread safe as far as that order is kept. The destructor ends what is under
// way, so that peers which wait for it fail at once.
class Transport {
 public:
  Transport(Origin origin, std::shared_ptr<ByteMeter> meter);
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;

  virtual c10::Device device() const = 0;

  // In place. Dense in memory, whatever the strides, or sparse COO with kSum:
  // then the result is a new tensor.
  Future all_reduce(const at::Tensor& tensor, ReduceOp op);
  // In place; dense in memory.
  Future broadcast(const at::Tensor& tensor, int root);
  // `output` has a row for every rank. Contiguous.
  Future all_gather(const at::Tensor& output, const at::Tensor& input);
  // Contiguous; rows change places as in Group::all_to_all.
  struct AllToAll {
    at::Tensor output;
    at::Tensor input;
    std::vector<std::int64_t> output_rows;
    std::vector<std::int64_t> input_rows;
    // So much of what goes to others is metadata.
    std::int64_t metadata_bytes = 0;
  };
  Future all_to_all(const AllToAll& exchange);
  Future barrier();

  // What this rank would send in an all-reduce of dense elements.
  virtual std::int64_t all_reduce_bytes(
      std::int64_t elems, std::int64_t elem_bytes) const = 0;

  // Whether the calling thread is one that works for this transport. It must
  // not destroy the transport: that would mean waiting for itself.
  virtual bool is_own_thread() const {
    return false;
  }

  const Origin& origin() const {
    return *origin_;
  }

 protected:
  // What the collectives do once they are counted.
  virtual Future start_all_reduce(const at::Tensor& tensor, ReduceOp op) = 0;
  virtual Future start_broadcast(const at::Tensor& tensor, int root) = 0;
  virtual Future start_all_gather(
      const at::Tensor& output, const at::Tensor& input) = 0;
  virtual Future start_all_to_all(const AllToAll& exchange) = 0;
  virtual Future start_barrier() = 0;

  virtual std::int64_t broadcast_bytes(
      int root, std::int64_t buffer_bytes) const = 0;
  virtual std::int64_t all_gather_bytes(
      std::int64_t contribution_bytes) const = 0;
  // Sent once to learn the sizes of the others' sparse tensors.
  virtual std::int64_t sparse_header_bytes() const = 0;

  // The future of a collective with its failure put like that; `result` takes
  // the place of what it held, if given.
  Future named(
      const char* operation,
      const Future::Raw& collective,
      const at::Tensor& result = {}) const;

 private:
  void count_sparse(const at::Tensor& tensor);

  // Callbacks of collectives hold it, too.
  std::shared_ptr<const Origin> origin_;
  std::shared_ptr<ByteMeter> meter_;
};

}  // namespace gradwire
