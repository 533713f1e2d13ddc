#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/group.h"

namespace gradwire::apps {

struct TrainOptions {
  std::optional<int> nproc;
  std::string hook = "allreduce";
  std::string data = "fashion-mnist";
  std::string model = "cnn";
  int epochs = 2;
  // The global batch: all ranks together.
  std::int64_t batch = 128;
  double lr = 0.05;
  std::string optimizer = "sgd";
  // Of SGD.
  double momentum = 0.9;
  // Steps from one average of the parameters to the next; 0: gradients are
  // averaged instead.
  std::int64_t local_sgd = 0;
  // A period, and a hook behind a comma; empty: off.
  std::string diloco;
  bool zero = false;
  bool overlap = false;
  // bf16 or fp16; empty: parameters are used as they are.
  std::string precision;
  std::uint64_t seed = 1;
  // Stop after this many steps; 0: after the epochs.
  std::int64_t max_steps = 0;
  // Compute threads a rank. One makes results independent of the machine.
  int threads = 1;
  std::string checkpoint;
  // Also every so many steps; 0: after each epoch only.
  std::int64_t checkpoint_every = 0;
  bool resume = false;
  std::string json;
};

// What one rank of `gradwire train` does.
void train_rank(const TrainOptions& options, const Group& group);

}  // namespace gradwire::apps
