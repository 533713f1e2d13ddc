#include "gradwire/comm/local_call.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

using Kind = LocalCall::Kind;
using Calls = std::vector<LocalCall>;
using TensorList = std::vector<at::Tensor>;

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
  }
  return "unknown";
}

// What must be alike on all ranks: "all_reduce (sum) of 8 Float".
std::string describe(const LocalCall& call) {
  std::string text = name_of(call.kind);
  if (call.kind == Kind::kBarrier) {
    return text;
  }
  if (call.kind == Kind::kAllReduce) {
    text += concat(" (", name_of(call.op), ")");
  }
  text += " of ";
  if (call.input.is_sparse()) {
    text += concat("sparse ", call.input.sizes(), " ");
  } else if (call.kind != Kind::kAllToAll) {
    text += concat(call.input.numel(), " ");
  }
  text += c10::toString(call.input.scalar_type());
  if (call.kind == Kind::kBroadcast) {
    text += concat(" from rank ", call.root);
  }
  return text;
}

bool alike(const LocalCall& a, const LocalCall& b) {
  if (a.kind != b.kind || a.op != b.op || a.root != b.root ||
      a.input.defined() != b.input.defined()) {
    return false;
  }
  if (!a.input.defined()) {
    return true;
  }
  const bool sizes = a.kind == Kind::kAllToAll ||
                     (a.input.is_sparse() ? a.input.sizes() == b.input.sizes()
                                          : a.input.numel() == b.input.numel());
  return sizes && a.input.is_sparse() == b.input.is_sparse() &&
         a.input.scalar_type() == b.input.scalar_type();
}

std::string different_counts(const Calls& calls) {
  for (std::size_t from = 0; from < calls.size(); ++from) {
    for (std::size_t to = 0; to < calls.size(); ++to) {
      const auto sent = calls[from].input_bytes[to];
      const auto expected = calls[to].output_bytes[from];
      if (sent != expected) {
        return concat(
            "all_to_all: rank ",
            from,
            " sends ",
            sent,
            " bytes to rank ",
            to,
            ", which expects ",
            expected);
      }
    }
  }
  return "";
}

// The elements in the order of memory. A write is none that autograd sees, as
// with a transport that gets bytes from a socket.
at::Tensor flat(const at::Tensor& tensor) {
  return at::Tensor(tensor.variable_data())
      .as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

void accumulate(at::Tensor& sum, const at::Tensor& next, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      sum.add_(next);
      break;
    case ReduceOp::kMin:
      at::minimum_out(sum, sum, next);
      break;
    case ReduceOp::kMax:
      at::maximum_out(sum, sum, next);
      break;
    case ReduceOp::kProduct:
      sum.mul_(next);
      break;
  }
}

char* bytes(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr());
}

void copy(char* to, const char* from, std::int64_t count) {
  if (count > 0 && to != from) {
    std::memcpy(to, from, static_cast<std::size_t>(count));
  }
}

void reduce_dense(const Calls& calls) {
  at::Tensor sum = flat(calls[0].input);
  for (std::size_t rank = 1; rank < calls.size(); ++rank) {
    accumulate(sum, flat(calls[rank].input), calls[0].op);
  }
  for (const auto& call : calls) {
    copy(
        bytes(call.output),
        bytes(sum),
        static_cast<std::int64_t>(sum.nbytes()));
  }
}

std::vector<TensorList> reduce_sparse(const Calls& calls) {
  if (calls[0].op != ReduceOp::kSum) {
    fail("comm", "all_reduce of sparse tensors can only sum");
  }
  at::Tensor sum = calls[0].input;
  for (std::size_t rank = 1; rank < calls.size(); ++rank) {
    sum = sum.add(calls[rank].input);
  }
  sum = sum.coalesce();
  std::vector<TensorList> results;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    results.push_back({rank == 0 ? sum : sum.clone()});
  }
  return results;
}

void gather(const Calls& calls) {
  const auto share = static_cast<std::int64_t>(calls[0].input.nbytes());
  for (const auto& to : calls) {
    for (std::size_t from = 0; from < calls.size(); ++from) {
      copy(
          bytes(to.output) + static_cast<std::int64_t>(from) * share,
          bytes(calls[from].input),
          share);
    }
  }
}

void exchange(const Calls& calls) {
  std::vector<std::int64_t> sent(calls.size());
  for (std::size_t to = 0; to < calls.size(); ++to) {
    std::int64_t received = 0;
    for (std::size_t from = 0; from < calls.size(); ++from) {
      const std::int64_t count = calls[to].output_bytes[from];
      copy(
          bytes(calls[to].output) + received,
          bytes(calls[from].input) + sent[from],
          count);
      received += count;
      sent[from] += count;
    }
  }
}

}  // namespace

const char* name_of(LocalCall::Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kBarrier:
      return "barrier";
  }
  return "a collective";
}

std::string difference(const Calls& calls) {
  for (std::size_t rank = 1; rank < calls.size(); ++rank) {
    if (!alike(calls[0], calls[rank])) {
      return concat(
          describe(calls[0]),
          " on rank 0 but ",
          describe(calls[rank]),
          " on rank ",
          rank);
    }
  }
  return calls[0].kind == Kind::kAllToAll ? different_counts(calls) : "";
}

std::vector<TensorList> perform(const Calls& calls) {
  const at::NoGradGuard no_grad;
  switch (calls[0].kind) {
    case Kind::kAllReduce:
      if (calls[0].input.is_sparse()) {
        return reduce_sparse(calls);
      }
      reduce_dense(calls);
      break;
    case Kind::kBroadcast:
      for (const auto& call : calls) {
        copy(
            bytes(call.output),
            bytes(calls[static_cast<std::size_t>(call.root)].input),
            static_cast<std::int64_t>(call.output.nbytes()));
      }
      break;
    case Kind::kAllGather:
      gather(calls);
      break;
    case Kind::kAllToAll:
      exchange(calls);
      break;
    case Kind::kBarrier:
      return std::vector<TensorList>(calls.size());
  }
  std::vector<TensorList> results;
  for (const auto& call : calls) {
    results.push_back({call.output});
  }
  return results;
}

}  // namespace gradwire
