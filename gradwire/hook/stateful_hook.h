#pragma once

// Private to gradwire: what hooks with a lane and error feedback share.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/comm/lane.h"
#include "gradwire/hook/hook.h"
#include "gradwire/hook/parameter_memory.h"

namespace gradwire {

// Sends every bucket on one lane, compressed or as it is, and settles what the
// step leaves behind when it has ended: a step whose averages are not finite,
// or that failed, will not be taken, so it loses nothing.
class StatefulHook : public Hook {
 public:
  void begin_step(const Step& step) final;
  // Throws Error outside of a step.
  Future reduce(Bucket& bucket) final;
  void end_step(Step& step) final;
  void rebuild() final;
  void save(HookState& state) final;
  void load(const HookState& state) final;
  void check(const HookState& state, const Parameters& parameters) const final;
  bool take_residuals(const std::map<std::string, at::Tensor>& owed) final;

 protected:
  struct Traits {
    std::string name;
    // The name with the options, which all ranks must have alike.
    std::string spec;
    bool feedback = true;
    // Of the residuals.
    at::ScalarType memory = at::kFloat;
    // Whether a world of one compresses as well.
    bool compresses_alone = false;
    // Sparse gradients are sent as they are instead of refused.
    bool pass_sparse = false;
  };

  StatefulHook(
      Traits traits, const Group& group, std::vector<Lane::Phase> phases);

  // Whether this bucket is sent as it is.
  virtual bool passes(const Bucket& bucket) const = 0;
  virtual Future compress(const Bucket& bucket) = 0;
  virtual Future pass(const Bucket& bucket);
  // The step has ended, and its gradients count or not. Not called for a step
  // without buckets.
  virtual void settle(bool taken) = 0;
  // The bucket layout changed: drop what was kept by bucket index.
  virtual void forget_buckets() = 0;
  // Beyond the number of steps and the residuals.
  virtual void save_more(HookState&) {}
  virtual void load_more(const HookState&) {}
  virtual void check_more(const HookState&, const Parameters&) const {}

  // Throws Error unless the state has this number, which counts something.
  void check_count(const HookState& state, const std::string& number) const;

  const std::string& name() const {
    return traits_.name;
  }
  int world() const {
    return world_;
  }
  // Steps so far.
  std::uint64_t steps() const {
    return steps_;
  }
  // Null in a world of one.
  Lane* lane() const {
    return lane_.get();
  }
  // Set, by any thread, when an average is not finite.
  const std::shared_ptr<std::atomic<bool>>& not_finite() const {
    return not_finite_;
  }
  bool has_feedback() const {
    return traits_.feedback;
  }
  ParameterMemory& residuals() {
    return residuals_;
  }
  // Adds what is owed of parameter i and has no place in the memory of a
  // bucket.
  void pay(const Bucket& bucket, std::size_t i);
  // Ends the lane. To be called by the destructor of the last class, before
  // what its jobs work on is gone.
  void stop_lane() {
    lane_.reset();
  }

 private:
  Traits traits_;
  int world_;
  bool in_step_ = false;
  std::uint64_t steps_ = 0;
  // Of the buckets of this step.
  std::vector<Future> results_;
  std::shared_ptr<std::atomic<bool>> not_finite_ =
      std::make_shared<std::atomic<bool>>(false);
  ParameterMemory residuals_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace gradwire
