#pragma once

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <memory>
#include <string>
#include <vector>

namespace gradwire::compat {

struct ReducerOptions {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  // True where a parameter's gradient is sparse.
  std::vector<bool> sparse;
  std::int64_t first_bucket_bytes = 0;
  std::int64_t bucket_bytes = 0;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool gradient_as_bucket_view = false;
};

// A Reducer with the Logger that some of its paths use unchecked.
struct ReducerPair {
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
};

ReducerPair make_reducer(
    const ReducerOptions& options,
    c10::intrusive_ptr<c10d::ProcessGroup> group);

// Makes the Reducer forget a backward that failed half way. All ranks must do
// so before the same forward.
void reset(c10d::Reducer& reducer);

// Gives the Reducer other buckets, by indices of parameters, between two
// iterations.
void set_buckets(
    c10d::Reducer& reducer, std::vector<std::vector<std::size_t>> buckets);

// How many forwards were to be followed by a backward that averages.
std::int64_t synced_forwards(const c10d::Reducer& reducer);

// In a hook's call: whether the average becomes the gradient of this parameter
// for certain. Not where parameters may stay unused and this rank has not used
// it; in a static graph from the second iteration on: where no rank has.
bool has_gradient(const c10d::Reducer& reducer, std::size_t index);

// Gradients of this backward are in a context of distributed autograd, not in
// `.grad`.
bool in_dist_autograd(const c10d::Reducer& reducer);

// Buckets as a rank without input would have them, in the order of reduction:
// zeros, and sparse tensors without elements where gradients are sparse.
std::vector<c10d::GradBucket> zero_buckets(const c10d::Reducer& reducer);

// By what a Reducer without a hook divides in the backward of the next forward;
// 0: by the number of ranks, as always.
void set_divisor(c10d::Reducer& reducer, int divisor);

}  // namespace gradwire::compat
