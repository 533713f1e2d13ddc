#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/bytes.h"
#include "gradwire/comm/group.h"
#include "gradwire/hook/hook_record.h"
#include "gradwire/optim/named_tensor.h"

namespace gradwire {

struct ModelAveragerOptions {
  // Steps without averages: the `start` of the hook post_local_sgd.
  std::int64_t warmup = 0;
  // How averages travel: the spec of a hook. One that compresses sends what has
  // changed since the last average, with the hook's error feedback.
  std::string average = "allreduce";
};

// What an averager has done so far on this rank.
struct AveragerStats {
  std::int64_t steps = 0;
  std::int64_t averages = 0;
  Bytes sent = {};
};

// Local SGD: ranks step by themselves, and every so often their tensors are
// replaced by the average over ranks. All tensors that it is given are
// averaged, whether they have a gradient or not, in fp32 at least; integers
// become those of the first rank that takes part.
//
// All ranks call average_parameters() equally often. Not thread safe. Its calls
// are collective, but for those that only read. When an average fails the
// tensors are as they were, and no step was counted. Arguments that are wrong,
// or differ between ranks, are an Error on every rank.
class ModelAverager {
 public:
  virtual ~ModelAverager();
  ModelAverager(const ModelAverager&) = delete;

  // Counts a step of the optimizer, and averages where it is time.
  void average_parameters();
  // Averages over all ranks, whatever time it is, for example at the end. Is no
  // step.
  void average_now();

  // Steps so far.
  std::int64_t step() const;
  // Goes on counting from there, alike on all ranks.
  void set_step(std::int64_t step);
  std::int64_t warmup() const;
  AveragerStats stats() const;

  // The steps, what compressed averages remember, and this rank's tensors, for
  // they are its own between two averages. One file a rank, as with
  // DistributedDataParallel::save_hook_state. Loading goes on with the same
  // bits; in another world all ranks take the tensors of the first one.
  void save(const std::string& folder) const;
  void load(const std::string& folder);
  // The same without files, for a world of the same size.
  HookRecord state() const;
  void set_state(const HookRecord& state);

 protected:
  struct Level {
    // Ranks that are averaged: blocks of so many.
    std::int64_t ranks = 0;
    std::int64_t period = 0;
  };

  // From the smallest blocks to all ranks. `name` is the one of the class.
  ModelAverager(
      const Group& group,
      const NamedTensorList& tensors,
      const ModelAveragerOptions& options,
      const std::vector<Level>& levels,
      const std::string& name);

 private:
  // Whether this level averages in the step with this number, from 0.
  virtual bool is_due(const Level& level, std::int64_t step) const = 0;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct PeriodicModelAveragerOptions {
  // Steps from one average to the next.
  std::int64_t period = 1;
  std::int64_t warmup = 0;
  std::string average = "allreduce";
};

// Averages over all ranks in the first step after `warmup` ones, and every
// `period` steps from then on.
class PeriodicModelAverager : public ModelAverager {
 public:
  PeriodicModelAverager(
      const Group& group,
      const NamedTensorList& tensors,
      const PeriodicModelAveragerOptions& options);

 private:
  bool is_due(const Level& level, std::int64_t step) const override;
};

// Averages within blocks of ranks at periods of their own: {{2, 4}, {8, 16}} is
// every 2 steps within 4 ranks, every 8 within 16. A period is due in steps
// that it divides, counted from 0, once `warmup` are over; of several that are
// due the longest counts. Sizes ascend with periods, each divides the next, and
// the last one is all ranks.
class HierarchicalModelAverager : public ModelAverager {
 public:
  // Size of the blocks by period.
  using Periods = std::map<std::int64_t, std::int64_t>;

  HierarchicalModelAverager(
      const Group& group,
      const NamedTensorList& tensors,
      const Periods& periods,
      const ModelAveragerOptions& options = {});

 private:
  bool is_due(const Level& level, std::int64_t step) const override;
};

}  // namespace gradwire
