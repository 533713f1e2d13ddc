#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/compat/autograd.h"
#include "gradwire/hook/bucket.h"
#include "gradwire/hook/step.h"

namespace gradwire {

// Watches the gradients of one DDP's parameters arrive: knows which ones are
// still missing, when the last one came, and when backward has ended with all
// of them averaged. Its hooks run before the Reducer's, so make it first.
//
// Gradients may arrive on several threads at once, as they do in a distributed
// backward; all else is for the thread that runs forward.
class GradientWatch {
 public:
  struct Options {
    int rank = 0;
    // A parameter may be used in several ways in one backward (checkpointing).
    bool static_graph = false;
    bool find_unused_parameters = false;
  };

  // `on_begin` runs before the first gradient of a backward is averaged, on
  // the thread that brings it; `on_end` when all of them are, with the times of
  // that backward.
  GradientWatch(
      const Parameters& parameters,
      Options options,
      std::function<void()> on_begin,
      std::function<void(const Step&)> on_end);
  ~GradientWatch();
  GradientWatch(const GradientWatch&) = delete;

  // Before a forward. Tensor::set_, which torch::load uses, silently detaches a
  // parameter from everything that listens for its gradient: reattach it.
  void reattach();
  // A forward whose backward will be averaged is done.
  void arm();
  // The step is over, whether it succeeded or failed.
  void disarm();
  // Between forward and the end of backward.
  bool armed() const;

  // Notes the start of backward when the gradient of `output` is computed. A
  // leaf keeps what is hung on it for good, so there the first gradient counts.
  void watch_output(const at::Tensor& output);

  // Parameters without a gradient in a backward that has begun.
  std::vector<std::string> missing() const;

 private:
  struct State;
  struct Registration {
    at::Tensor parameter;
    compat::NodePtr accumulator;
    std::uintptr_t key;
  };

  // Shared with the callbacks that autograd keeps.
  std::shared_ptr<State> state_;
  std::vector<Registration> registrations_;
};

}  // namespace gradwire
