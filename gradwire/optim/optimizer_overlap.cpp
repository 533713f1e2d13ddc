#include "gradwire/optim/optimizer_overlap.h"

#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <typeinfo>

#include "gradwire/base/error.h"
#include "gradwire/comm/lane.h"
#include "gradwire/hook/wrapper.h"
#include "gradwire/optim/average_steps.h"

namespace gradwire {
namespace {

using Optimizer = torch::optim::Optimizer;
using Tensors = std::vector<at::Tensor>;

// Waits for the average of one bucket. Errors are of the bucket alone: the lane
// goes on, as the hook inside does or does not.
class AverageJob : public Lane::Job {
 public:
  AverageJob(AverageSteps& steps, const Bucket& bucket, Future average)
      : steps_(steps), bucket_(bucket), average_(std::move(average)) {}

  std::span<const Step> steps() const override {
    static const Step kSteps[] = {step("optimizer", &AverageJob::run)};
    return kSteps;
  }

 private:
  void run(const Lane::Groups&) {
    try {
      result().set_value(steps_.take(bucket_, average_.wait()));
    } catch (...) {
      result().refuse(std::current_exception());
    }
  }

  AverageSteps& steps_;
  Bucket bucket_;
  Future average_;
};

class OptimizerOverlap : public HookWrapper {
 public:
  OptimizerOverlap(
      std::shared_ptr<Hook> inner,
      const Group& group,
      Optimizer& optimizer,
      const OverlapOptions& options,
      const std::string& label)
      : HookWrapper(std::move(inner)),
        options_(options),
        steps_(optimizer, options),
        lane_(std::make_unique<Lane>(
            group, label, std::vector<Lane::Phase>{{"gw optimizer", 0}})) {}
  // The lane waits for averages, and what is inside fails those that are under
  // way.
  ~OptimizerOverlap() override {
    stop_inner();
    lane_.reset();
  }

  bool needs_gradients() const override {
    return true;
  }

  void begin_step(const Step& step) override {
    HookWrapper::begin_step(step);
    steps_.begin();
  }

  Future reduce(Bucket& bucket) override {
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      note(bucket, i);
    }
    Future average = inner().reduce(bucket);
    results_.push_back(lane_->submit(
        std::make_shared<AverageJob>(steps_, bucket, std::move(average)),
        bucket.buffer()));
    return results_.back();
  }

  void end_step(Step& step) override {
    const bool reduced = wait_for_all();
    if (step.outcome == Step::Outcome::kApplied && steps_.not_finite()) {
      step.outcome = Step::Outcome::kNotFinite;
    }
    HookWrapper::end_step(step);
    const Tensors late = std::exchange(late_, {});
    const Tensors ready = std::exchange(ready_, {});
    if (!reduced || step.outcome == Step::Outcome::kFailed) {
      return;
    }
    if (!options_.all_or_nothing || step.outcome == Step::Outcome::kApplied) {
      steps_.take_late(late, ready);
    }
    if (options_.gradients == OverlapOptions::Gradients::kFree) {
      free(late);
      free(ready);
    }
  }

 private:
  void note(const Bucket& bucket, std::size_t i) {
    const at::Tensor& tensor = bucket.parameter(i).tensor;
    if (steps_.has(tensor)) {
      auto& kind =
          !bucket.is_sparse() && bucket.has_gradient(i) ? ready_ : late_;
      kind.push_back(tensor);
    }
  }

  // Whether all are averages.
  bool wait_for_all() {
    bool all = true;
    for (const Future& result : std::exchange(results_, {})) {
      try {
        result.wait();
      } catch (const std::exception&) {
        all = false;
      }
    }
    return all;
  }

  static void free(const Tensors& parameters) {
    for (const auto& parameter : parameters) {
      parameter.mutable_grad() = at::Tensor();
    }
  }

  OverlapOptions options_;
  AverageSteps steps_;
  // Of this step.
  std::vector<Future> results_;
  Tensors ready_;
  Tensors late_;
  std::unique_ptr<Lane> lane_;
};

class OverlapAround : public HookAround {
 public:
  OverlapAround(Optimizer& optimizer, OverlapOptions options)
      : optimizer_(optimizer), options_(std::move(options)) {}

  std::string text(const std::string& inner) const override {
    std::vector<std::string> options;
    if (options_.all_or_nothing) {
      options.emplace_back("all_or_nothing=on");
    }
    if (options_.clip_value) {
      options.push_back(concat("clip_value=", *options_.clip_value));
    }
    if (options_.gradients == OverlapOptions::Gradients::kFree) {
      options.emplace_back("gradients=free");
    }
    if (options_.scale) {
      options.emplace_back("scale=on");
    }
    return concat(
        "optimizer_overlap",
        options.empty() ? "" : ":",
        join(options, ","),
        "(",
        inner,
        ")");
  }

  void check(const Parameters& parameters) const override {
    if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer_) != nullptr) {
      fail(
          "optim",
          "LBFGS steps all parameters at once and computes the loss anew, "
          "expected an optimizer that takes each parameter by itself");
    }
    const auto& clip = options_.clip_value;
    if (clip && !(std::isfinite(*clip) && *clip > 0)) {
      fail("optim", "clip_value is ", *clip, ", expected more than 0");
    }
    const auto& groups = optimizer_.param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      check_group(groups[i].params(), i, parameters);
    }
  }

  std::shared_ptr<Hook> make(
      std::shared_ptr<Hook> inner,
      const Group& group,
      const std::string& text) const override {
    const auto label = concat(
        text,
        " of ",
        c10::demangle(typeid(optimizer_).name()),
        " with ",
        optimizer_.param_groups().size(),
        " groups");
    return std::make_shared<OptimizerOverlap>(
        std::move(inner), group, optimizer_, options_, label);
  }

 private:
  // A frozen parameter never has a gradient, with any optimizer.
  static void check_group(
      const Tensors& members, std::size_t group, const Parameters& parameters) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      const bool known = std::ranges::any_of(parameters, [&](const auto& each) {
        return each->tensor.is_same(members[i]);
      });
      if (!known && members[i].requires_grad()) {
        fail(
            "optim",
            "the optimizer's parameter ",
            i,
            " of group ",
            group,
            ", of sizes ",
            members[i].sizes(),
            ", is none that the DDP averages and would never step, expected "
            "an optimizer of the DDP's parameters");
      }
    }
  }

  Optimizer& optimizer_;
  OverlapOptions options_;
};

}  // namespace

HookChoice optimizer_overlap(
    HookChoice hook, Optimizer& optimizer, const OverlapOptions& options) {
  return {std::make_shared<OverlapAround>(optimizer, options), std::move(hook)};
}

}  // namespace gradwire
