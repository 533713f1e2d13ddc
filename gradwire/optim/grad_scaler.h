#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "gradwire/comm/group.h"

namespace torch::optim {
class Optimizer;
}

namespace gradwire {

struct GradScalerOptions {
  double init_scale = 65536;
  // After so many steps in a row that were finite the scale grows; one that was
  // not is skipped, and the scale backs off.
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  // Off: the scale is 1, and every step is taken.
  bool enabled = true;
  // Where ranks tell each other that a gradient was not finite. Needed only
  // where gradients are not averaged (local SGD, ignored parameters): averages
  // are the same on all ranks, and so is what follows from them.
  std::optional<Group> group = {};
};

// What a scaler remembers, to be kept in a checkpoint.
struct GradScalerState {
  double scale = 0;
  // Since the scale changed last.
  std::int64_t finite_steps = 0;
};

// Scales losses up, so that small gradients are not lost in a 16-bit backward,
// and gradients down again; steps with gradients that are not finite are
// skipped. The scale follows the rule of torch.amp.GradScaler:
//
//   scaler.scale(loss).backward();
//   scaler.step(adam);
//   scaler.update();
//
// All ranks call it alike. With a group the constructor, unscale_, step and
// note are collective. Not thread safe.
class GradScaler {
 public:
  // Throws Error for options out of range, and with a group where ranks have
  // others.
  explicit GradScaler(const GradScalerOptions& options = {});

  double scale() const;
  // Of a 16-bit loss the product is of float.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides gradients by the scale, in place, for who wants to see or clip them
  // before step(). Once per optimizer and update. Tied parameters count once.
  void unscale_(const torch::optim::Optimizer& optimizer);
  // The same for who steps these parameters by other means; whether all
  // gradients of all ranks are finite.
  bool unscale_(const std::vector<at::Tensor>& parameters);

  // Steps, unless a gradient of any rank is not finite; whether it did.
  // Unscales first where that has not happened.
  bool step(torch::optim::Optimizer& optimizer);

  // For who divides by scale() and looks at gradients without unscale_: what
  // was found. Returns what all ranks found.
  bool note(bool finite);

  // The end of an iteration: the scale changes as its gradients say.
  void update();

  GradScalerState state() const;
  // Throws Error for numbers that no state has.
  void load(const GradScalerState& state);

 private:
  struct Progress {
    bool finite = true;
    bool stepped = false;
  };

  bool divide(const std::vector<at::Tensor>& parameters);
  Progress& unscaled(const torch::optim::Optimizer& optimizer);

  GradScalerOptions options_;
  // Of this type where PyTorch computes it.
  float scale_;
  std::int64_t finite_steps_ = 0;
  // In this iteration.
  std::map<const torch::optim::Optimizer*, Progress> progress_;
  bool noted_ = false;
  bool finite_ = true;
};

}  // namespace gradwire
