#include "gradwire/hook/powersgd_hook.h"

#include <c10/core/ScalarType.h>

#include "gradwire/base/error.h"
#include "gradwire/comm/lane.h"
#include "gradwire/hook/dense.h"
#include "gradwire/hook/plain_job.h"
#include "gradwire/hook/step_results.h"

namespace gradwire {
namespace {

// One bucket of one step. Phases: multiply and send P, orthogonalise and send
// Q, reconstruct.
class PowerJob : public Lane::Job {
 public:
  PowerJob(
      std::shared_ptr<LowRank> low_rank,
      LowRank::Step step,
      int world,
      StepResults::Flag not_finite)
      : low_rank_(std::move(low_rank)),
        buffer_(step.bucket.buffer()),
        step_(std::move(step)),
        world_(world),
        not_finite_(std::move(not_finite)),
        result_(
            c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get())) {}

  Future future() const {
    return Future(result_);
  }
  // Of a world of one, on the calling thread.
  void run_alone() {
    for (std::size_t phase = 0; phase < 3; ++phase) {
      run(phase, {});
    }
  }

  void wait() override {
    if (pending_.valid()) {
      std::exchange(pending_, Future()).wait();
    }
  }
  void run(std::size_t phase, const Lane::Groups& groups) override {
    if (phase == 0) {
      low_rank_->begin(std::move(*step_), world_);
      step_.reset();
      sum_up(low_rank_->first(), groups);
    } else if (phase == 1) {
      low_rank_->turn();
      sum_up(low_rank_->second(), groups);
    } else {
      if (!low_rank_->finish()) {
        *not_finite_ = true;
      }
      result_->markCompleted(c10::IValue(buffer_));
    }
  }
  void fail(const std::exception_ptr& error) noexcept override {
    if (!result_->completed()) {
      result_->setError(error);
    }
  }

 private:
  void sum_up(const at::Tensor& tensor, const Lane::Groups& groups) {
    if (world_ > 1 && tensor.numel() > 0) {
      pending_ = groups[0].all_reduce(tensor);
    }
  }

  std::shared_ptr<LowRank> low_rank_;
  at::Tensor buffer_;
  std::optional<LowRank::Step> step_;
  int world_;
  StepResults::Flag not_finite_;
  Future::Raw result_;
  Future pending_;
};

class PowerSgdHook : public Hook {
 public:
  PowerSgdHook(
      std::string name, const HookContext& context, LowRank::Matrices matrices)
      : name_(std::move(name)),
        options_(context.options),
        matrices_(matrices),
        pass_sparse_(passes_sparse(context.options)),
        world_(context.group.size()) {
    if (world_ > 1) {
      lane_ = std::make_unique<Lane>(
          context.group,
          name_,
          std::vector<Lane::Phase>{{"P", 1}, {"Q", 1}, {"reconstruct", 0}});
    }
  }

  Future reduce(Bucket& bucket) override {
    check_dense_floats(name_, bucket, pass_sparse_);
    if (bucket.index() == 0) {
      end_step();
      results_.begin();
    }
    try {
      const bool plain = bucket.is_sparse() ||
                         step_ < static_cast<std::uint64_t>(options_.start);
      const Future result = plain ? pass(bucket) : compress(bucket);
      results_.add(result, bucket.is_last());
      return result;
    } catch (...) {
      // On this rank alone, as all ranks have passed the checks.
      if (lane_) {
        lane_->fail(std::current_exception());
      }
      throw;
    }
  }

  void rebuild() override {
    end_step();
    residuals_.rebuild();
    bases_.rebuild();
    buckets_.clear();
  }

  void save(HookState& state) override {
    end_step();
    state.numbers["step"] = static_cast<std::int64_t>(step_);
    state.shared = bases_.save();
    state.residuals = residuals_.save();
  }

  void load(const HookState& state) override {
    end_step();
    step_ = static_cast<std::uint64_t>(state.numbers.at("step"));
    bases_.load(state.shared);
    residuals_.load(state.residuals);
  }

 private:
  Future pass(const Bucket& bucket) {
    if (world_ == 1) {
      return Future::ready(bucket.buffer());
    }
    auto job = std::make_shared<PlainJob>(
        bucket.buffer(), world_, results_.not_finite());
    lane_->submit(job);
    return job->future();
  }

  Future compress(const Bucket& bucket) {
    std::shared_ptr<LowRank>& planned = buckets_[bucket.index()];
    if (!planned || !planned->fits(bucket)) {
      planned = std::make_shared<LowRank>(bucket, options_, matrices_);
    }
    LowRank::Step step{.bucket = bucket, .number = step_};
    step.basis = bases_.of(bucket.index(), planned->basis_entries());
    if (options_.error_feedback) {
      step.residual =
          residuals_.of(bucket.index(), planned->residual_entries());
    }
    auto job = std::make_shared<PowerJob>(
        planned, std::move(step), world_, results_.not_finite());
    if (world_ == 1) {
      job->run_alone();
    } else {
      lane_->submit(job);
    }
    return job->future();
  }

  // A step that is not finite, or that failed, will not be taken: its losses
  // are none, and its subspace is worth nothing.
  void end_step() {
    const auto good = results_.end();
    if (!good) {
      return;
    }
    ++step_;
    for (ParameterMemory* memory : {&residuals_, &bases_}) {
      if (*good) {
        memory->commit();
      } else {
        memory->rollback();
      }
    }
  }

  std::string name_;
  PowerSgdOptions options_;
  LowRank::Matrices matrices_;
  bool pass_sparse_;
  int world_;

  std::uint64_t step_ = 0;
  ParameterMemory residuals_{"residual"};
  ParameterMemory bases_{"subspace"};
  std::map<std::size_t, std::shared_ptr<LowRank>> buckets_;
  StepResults results_;
  // Last, so that its threads end before what they work on.
  std::unique_ptr<Lane> lane_;
};

}  // namespace

HookInfo powersgd_info(
    const std::string& name,
    const std::string& summary,
    LowRank::Matrices matrices) {
  HookInfo info{
      .name = name,
      .summary = summary,
      .make = [name, matrices](HookContext context) -> std::unique_ptr<Hook> {
        return std::make_unique<PowerSgdHook>(name, context, matrices);
      },
      .options = powersgd_options()};
  info.options.push_back(sparse_option());
  return info;
}

}  // namespace gradwire
