#pragma once

#include <functional>
#include <optional>

#include "gradwire/hook/choice.h"

namespace torch::optim {
class Optimizer;
}

namespace gradwire {

struct OverlapOptions {
  enum class Gradients {
    kKeep,  // `.grad` has the averages after backward, until zero_grad()
    kFree,  // `.grad` is undefined after backward
  };
  Gradients gradients = Gradients::kKeep;

  // Averages are clipped to this value before the step, as clip_grad_value_
  // does.
  std::optional<double> clip_value = {};

  // By what averages are divided before the step, and before they are clipped:
  // what the loss was multiplied by. Asked once a step, when the first bucket
  // is there; equal on all ranks.
  std::function<double()> scale = {};

  // Nothing steps before the last average is there, and nothing at all when
  // some average is not finite: the step's outcome is then kNotFinite. Gives up
  // most of the overlap.
  bool all_or_nothing = false;
};

// A hook around another one which steps the parameters of a bucket as soon as
// their average is there, while backward and communication go on: backward()
// is backward() and optimizer.step(), to the bit.
//
//   torch::optim::Adam adam(net->parameters(), 1e-3);
//   auto ddp = gradwire::DistributedDataParallel(
//       net, group, {.hook = gradwire::optimizer_overlap("int8", adam)});
//   for (auto& batch : *loader) {
//     adam.zero_grad();
//     torch::nll_loss(ddp->forward(batch.data), batch.target).backward();
//   }
//
// Any optimizer of torch::optim but LBFGS, with parameters of the DDP only; it
// must outlive the hook, and must be left alone while a backward runs. Local
// backwards inside of no_sync() step nothing. When a bucket fails, parameters
// of earlier buckets have stepped already, unless all_or_nothing is set. Not
// for backwards of distributed autograd.
HookChoice optimizer_overlap(
    HookChoice hook,
    torch::optim::Optimizer& optimizer,
    const OverlapOptions& options = {});

}  // namespace gradwire
