#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/gradwire/train/train.h"
#include "gradwire/hook/choice.h"
#include "gradwire/optim/diloco.h"
#include "gradwire/optim/grad_scaler.h"
#include "gradwire/optim/model_averager.h"
#include "gradwire/optim/optimizer_state.h"
#include "gradwire/optim/zero.h"

namespace gradwire::apps {

// Throws Error for flags that exclude each other, or name nothing.
void check_stepping(const TrainOptions& options);

// How parameters step and what ranks exchange besides gradients, as the flags
// of `gradwire train` say. Not thread safe; calls are collective unless they
// only read.
class Stepper {
 public:
  // Before the DDP of these parameters is made.
  Stepper(
      const TrainOptions& options,
      const Group& group,
      const NamedTensorList& parameters);
  ~Stepper();
  Stepper(const Stepper&) = delete;

  // What the DDP's hook must be.
  const HookChoice& hook() const {
    return hook_;
  }
  // When all ranks have the same parameters.
  void begin();

  void zero_grad();
  // What backward begins with.
  at::Tensor scaled(const at::Tensor& loss) const;
  // After backward; `outcome` tells how its step ended.
  void step(const std::function<Step::Outcome()>& outcome);
  // The end of training: all ranks have the same parameters.
  void finish();

  // Ranks have parameters of their own between two averages.
  bool ranks_differ() const {
    return averager_ || diloco_;
  }
  // What the optimizer remembers: on the first rank, or on every rank where
  // they differ.
  OptimizerState state();
  // Every rank has a state. Throws Error, and changes nothing, for one that
  // does not fit.
  void set_state(const OptimizerState& state);
  // What averages remember, a file a rank. Nothing where there are none.
  void save(const std::string& folder);
  void load(const std::string& folder);

  // Of the loss scaler, in words; empty where there is none.
  std::string scaler_state() const;
  // Throws Error for what is no such words.
  void set_scaler_state(const std::string& words);

  // Of this rank's part.
  std::int64_t state_bytes();
  // Besides what the DDP has sent.
  Bytes sent() const;
  // In a sentence for the report; empty when there is nothing to tell.
  std::string summary() const;

 private:
  const TrainOptions& options_;
  Group group_;
  NamedTensorList parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  // The same, where it is one.
  ZeroRedundancyOptimizer* zero_ = nullptr;
  std::optional<GradScaler> scaler_;
  HookChoice hook_;
  std::unique_ptr<ModelAverager> averager_;
  std::unique_ptr<DiLoCo> diloco_;
};

}  // namespace gradwire::apps
