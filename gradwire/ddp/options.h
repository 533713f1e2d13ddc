#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "gradwire/hook/choice.h"

namespace gradwire {

// Which types a module computes and communicates in. at::kBFloat16 or
// at::kHalf.
struct MixedPrecision {
  // Parameters of float and double are computed with in this type. They stay
  // what they are outside of forward and backward, for optimizers and files,
  // and so do gradients. Unset: as they are.
  std::optional<at::ScalarType> parameters = {};
  // Gradients travel in this type: the hook is the cast of this name, or the
  // cast around it. Unset: in the parameters' own.
  std::optional<at::ScalarType> reduction = {};
  // The same for buffers, whose new values forward leaves in the buffers
  // themselves; at::kFloat is possible too. Unset: that of `parameters`.
  std::optional<at::ScalarType> buffers = {};
  // Tensors of floats among the arguments of forward are cast to the type of
  // `parameters`.
  bool cast_inputs = true;
};

struct DistributedDataParallelOptions {
  // How buckets become averages: a spec string, a Hook or a lambda. "none" is
  // plain averaging by the Reducer itself.
  HookChoice hook = "none";

  // A bucket is closed when it holds this many MiB. The first one is smaller,
  // so that communication starts early.
  double bucket_cap_mb = 25;
  double first_bucket_cap_mb = 1;

  // Search the graph of each forward for parameters that will get no gradient.
  // Costs a walk through the graph and an all-reduce of flags a step.
  bool find_unused_parameters = false;
  // The same parameters are used in the same way in every iteration: unused
  // ones are found once, in the first.
  bool static_graph = false;
  // `.grad` is a view of the bucket: saves a copy and the memory for it.
  bool gradient_as_bucket_view = false;

  // Every forward that a backward will average starts with rank 0's buffers
  // (running statistics and such).
  bool broadcast_buffers = true;
  // Construction ends with rank 0's parameters and buffers on every rank. Turn
  // it off only when they are equal already.
  bool init_sync = true;

  // Names of parameters and buffers that DDP leaves alone.
  std::vector<std::string> ignore = {};
  // Names of parameters with sparse gradients besides those of Embedding and
  // EmbeddingBag with sparse(true), which are found by themselves.
  std::vector<std::string> sparse = {};

  // See docs/mixed-precision.md.
  MixedPrecision precision = {};
};

}  // namespace gradwire
