#include "gradwire/optim/zero_overlap.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/hook/wrapper.h"
#include "gradwire/optim/averaged_bucket.h"
#include "gradwire/optim/zero_impl.h"

namespace gradwire {
namespace {

using Zero = ZeroRedundancyOptimizer;

// What this rank has to do in one bucket.
struct ZeroBucket {
  // Where its parameters are among those of the optimizer; none for others.
  std::vector<std::optional<std::size_t>> members;
  std::shared_ptr<Spread> spread;
};

// Steps this rank's slices of a bucket when the average is there. What goes
// wrong is the bucket's error alone: its parameters travel as they are then, so
// that ranks stay in step.
class ZeroStepJob : public Lane::Job {
 public:
  ZeroStepJob(
      Zero::Impl& zero,
      const ZeroBucket& planned,
      const Bucket& bucket,
      Future average)
      : zero_(zero),
        members_(planned.members),
        bucket_(bucket),
        average_(std::move(average)) {}

  std::span<const Step> steps() const override {
    static const Step kSteps[] = {step("step", &ZeroStepJob::run)};
    return kSteps;
  }

 private:
  void run(const Lane::Groups&) {
    try {
      AveragedBucket average(bucket_, average_.wait());
      average.make_writable();
      step_members(average);
    } catch (...) {
      result().refuse(std::current_exception());
    }
  }

  void step_members(const AveragedBucket& average) {
    std::vector<bool> steps(zero_.locals.size());
    const auto each = [&](const auto& visit) {
      for (std::size_t i = 0; i < members_.size(); ++i) {
        if (members_[i] && average.is_ready(i)) {
          visit(*zero_.parameters[*members_[i]], i);
        }
      }
    };
    each([&](ZeroParameter& parameter, std::size_t i) {
      if (parameter.run()) {
        parameter.set_gradient(average[i].gradient);
        steps[parameter.group()] = true;
      }
    });
    try {
      for (std::size_t g = 0; g < steps.size(); ++g) {
        if (steps[g]) {
          zero_.locals[g]->step();
        }
      }
    } catch (...) {
      each([](ZeroParameter& parameter, std::size_t) {
        parameter.set_gradient({});
      });
      throw;
    }
    each([](ZeroParameter& parameter, std::size_t) {
      parameter.set_gradient({});
    });
  }

  Zero::Impl& zero_;
  std::vector<std::optional<std::size_t>> members_;
  Bucket bucket_;
  Future average_;
};

class ZeroOverlap : public HookWrapper {
 public:
  ZeroOverlap(std::shared_ptr<Hook> inner, Zero& zero, bool interleaved)
      : HookWrapper(std::move(inner)),
        zero_(zero),
        impl_(zero.impl()),
        interleaved_(interleaved && impl_->group.size() > 1) {
    impl_->overlapped = true;
  }
  // The lane waits for averages, and what is inside fails those that are under
  // way.
  ~ZeroOverlap() override {
    stop_inner();
    wait_for_all();
    impl_->overlapped = false;
  }

  bool needs_gradients() const override {
    return true;
  }

  void begin_step(const Step& step) override {
    HookWrapper::begin_step(step);
    late_.assign(impl_->parameters.size(), false);
    if (interleaved_) {
      impl_->check_groups(zero_.param_groups());
      impl_->use_options(zero_.param_groups());
      for (const auto& parameter : impl_->parameters) {
        parameter->follow();
      }
    }
  }

  Future reduce(Bucket& bucket) override {
    if (bucket.is_sparse()) {
      fail(
          "optim",
          "the gradient of parameter '",
          bucket.parameter(0).name,
          "' is sparse, expected dense ones for zero_overlap");
    }
    Future average = inner().reduce(bucket);
    if (!interleaved_) {
      return average;
    }
    const ZeroBucket& planned = find_or_plan(bucket);
    note_late(planned, bucket);
    const Future stepped = impl_->spreader->run(
        std::make_shared<ZeroStepJob>(
            *impl_, planned, bucket, std::move(average)),
        bucket.buffer());
    const Future arrived =
        impl_->spreader->start(*planned.spread, bucket.buffer());
    results_.push_back(
        planned.spread->empty() ? stepped : both(stepped, arrived));
    return results_.back();
  }

  void end_step(Step& step) override {
    const bool arrived = wait_for_all();
    HookWrapper::end_step(step);
    if (!arrived || step.outcome == Step::Outcome::kFailed) {
      return;
    }
    if (!interleaved_) {
      impl_->step(zero_.param_groups());
      return;
    }
    step_late();
    impl_->note_written();
    ++impl_->steps;
  }

  void rebuild() override {
    HookWrapper::rebuild();
    buckets_.clear();
  }

 private:
  // Steps of a lane end in their order, so the first one is done when the
  // second one is.
  static Future both(const Future& first, const Future& second) {
    return second.then([first](const at::Tensor& value) {
      if (const auto error = first.error()) {
        std::rethrow_exception(error);
      }
      return value;
    });
  }

  const ZeroBucket& find_or_plan(const Bucket& bucket) {
    std::vector<std::optional<std::size_t>> members;
    std::vector<bool> chosen(impl_->parameters.size());
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      const auto found = impl_->by_tensor.find(
          bucket.parameter(i).tensor.unsafeGetTensorImpl());
      members.emplace_back();
      if (found != impl_->by_tensor.end()) {
        members.back() = found->second;
        chosen[found->second] = true;
      }
    }
    ZeroBucket& planned = buckets_[bucket.index()];
    if (!planned.spread || planned.members != members) {
      planned = {std::move(members), impl_->make_spread(chosen)};
    }
    return planned;
  }

  // Whether a parameter that this rank has not used gets a gradient is known
  // when the step ends.
  void note_late(const ZeroBucket& planned, const Bucket& bucket) {
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      if (const auto member = planned.members[i];
          member && !bucket.has_gradient(i)) {
        late_[*member] = impl_->parameters[*member]->run().has_value();
      }
    }
  }

  // What is late for its owner is sent once more, by all who own some of it.
  void step_late() {
    const at::NoGradGuard no_grad;
    at::Tensor flags =
        at::zeros({static_cast<std::int64_t>(late_.size())}, at::kInt);
    std::copy(late_.begin(), late_.end(), flags.data_ptr<int>());
    impl_->roll_call->named(impl_->group.all_reduce(flags, ReduceOp::kMax))
        .wait();
    std::vector<bool> sent(late_.size());
    std::copy_n(flags.const_data_ptr<int>(), sent.size(), sent.begin());
    if (std::ranges::find(sent, true) == sent.end()) {
      return;
    }
    for (std::size_t i = 0; i < late_.size(); ++i) {
      if (late_[i]) {
        impl_->parameters[i]->set_gradient(
            impl_->parameters[i]->tensor().grad());
      }
    }
    impl_->step_slices();
    impl_->drop_gradients();
    if (!late_spread_ || sent != late_sent_) {
      late_spread_ = impl_->make_spread(sent);
      late_sent_ = sent;
    }
    impl_->roll_call->named(impl_->spreader->start(*late_spread_)).wait();
  }

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

  Zero& zero_;
  std::shared_ptr<Zero::Impl> impl_;
  bool interleaved_;
  std::map<std::size_t, ZeroBucket> buckets_;
  // Of this step.
  std::vector<Future> results_;
  // By parameter: this rank has some of it and does not know whether to step.
  std::vector<bool> late_;
  std::vector<bool> late_sent_;
  std::shared_ptr<Spread> late_spread_;
};

class ZeroAround : public HookAround {
 public:
  ZeroAround(Zero& zero, const ZeroOverlapOptions& options)
      : zero_(zero), options_(options) {}

  std::string text(const std::string& inner) const override {
    return concat(
        "zero_overlap",
        options_.interleaved ? "" : ":interleaved=off",
        "(",
        inner,
        ")");
  }

  void check(const Parameters& parameters) const override {
    for (const auto& own : zero_.impl()->parameters) {
      const bool known = std::ranges::any_of(parameters, [&](const auto& each) {
        return each->tensor.is_same(own->tensor());
      });
      if (!known && own->tensor().requires_grad()) {
        fail(
            "optim",
            "parameter '",
            own->name(),
            "' of the optimizer is none that the DDP averages and would never "
            "step, expected an optimizer of the DDP's parameters");
      }
    }
    if (zero_.impl()->overlapped) {
      fail("optim", "the optimizer is overlapped with another DDP already");
    }
  }

  std::shared_ptr<Hook> make(
      std::shared_ptr<Hook> inner,
      const Group& group,
      const std::string&) const override {
    const Group& own = zero_.impl()->group;
    if (group.size() != own.size() || group.rank() != own.rank()) {
      fail(
          "optim",
          "the optimizer is of ",
          own.size(),
          " ranks and the DDP of ",
          group.size(),
          ", expected the same");
    }
    return std::make_shared<ZeroOverlap>(
        std::move(inner), zero_, options_.interleaved);
  }

 private:
  Zero& zero_;
  ZeroOverlapOptions options_;
};

}  // namespace

HookChoice zero_overlap(
    HookChoice hook, Zero& zero, const ZeroOverlapOptions& options) {
  return {std::make_shared<ZeroAround>(zero, options), std::move(hook)};
}

}  // namespace gradwire
