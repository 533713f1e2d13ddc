#include "gradwire/hook/powersgd_hook.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "gradwire/base/error.h"
#include "gradwire/comm/lane.h"
#include "gradwire/hook/dense.h"
#include "gradwire/hook/plain_job.h"
#include "gradwire/hook/step_results.h"

namespace gradwire {
namespace {

using Side = LowRank::Side;

// What steps send, in order.
std::vector<Side> sides_of(const PowerSgdOptions& options, std::uint64_t turn) {
  if (options.alternate) {
    return {turn % 2 == 0 ? Side::kLeft : Side::kRight};
  }
  std::vector<Side> sides;
  for (std::int64_t i = 0; i < options.iterations; ++i) {
    sides.push_back(Side::kLeft);
    sides.push_back(Side::kRight);
  }
  return sides;
}

// One all-reduce each, and one without.
std::vector<Lane::Phase> phases_of(const PowerSgdOptions& options) {
  std::vector<Lane::Phase> phases;
  for (const Side side : sides_of(options, 0)) {
    const std::string one = side == Side::kLeft ? "P" : "Q";
    phases.push_back({options.alternate ? "P or Q" : one, 1});
  }
  phases.push_back({"reconstruct", 0});
  return phases;
}

// One bucket of one step.
class PowerJob : public Lane::Job {
 public:
  PowerJob(
      std::shared_ptr<LowRank> low_rank,
      LowRank::Step step,
      std::vector<Side> sides,
      int world,
      StepResults::Flag not_finite)
      : low_rank_(std::move(low_rank)),
        buffer_(step.bucket.buffer()),
        step_(std::move(step)),
        sides_(std::move(sides)),
        world_(world),
        not_finite_(std::move(not_finite)),
        result_(Future::make_raw()) {}

  Future future() const {
    return Future(result_);
  }
  // Of a world of one, on the calling thread.
  void run_alone() {
    for (std::size_t phase = 0; phase <= sides_.size(); ++phase) {
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
    }
    if (phase < sides_.size()) {
      const at::Tensor sent = low_rank_->project(sides_[phase]);
      if (world_ > 1 && sent.numel() > 0) {
        pending_ = groups[0].all_reduce(sent);
      }
      return;
    }
    if (!low_rank_->finish()) {
      *not_finite_ = true;
    }
    result_->markCompleted(c10::IValue(buffer_));
  }
  void fail(const std::exception_ptr& error) noexcept override {
    if (!result_->completed()) {
      result_->setError(error);
    }
  }

 private:
  std::shared_ptr<LowRank> low_rank_;
  at::Tensor buffer_;
  std::optional<LowRank::Step> step_;
  std::vector<Side> sides_;
  int world_;
  StepResults::Flag not_finite_;
  Future::Raw result_;
  Future pending_;
};

at::ScalarType memory_type(const PowerSgdOptions& options) {
  return options.memory == "bf16"   ? at::kBFloat16
         : options.memory == "fp16" ? at::kHalf
                                    : at::kFloat;
}

class PowerSgdHook : public Hook {
 public:
  PowerSgdHook(
      std::string name, const HookContext& context, LowRank::Matrices matrices)
      : name_(std::move(name)),
        options_(to_powersgd_options(name_, context.options)),
        matrices_(matrices),
        pass_sparse_(passes_sparse(context.options)),
        world_(context.group.size()),
        residuals_("residual", memory_type(options_)) {
    if (world_ > 1) {
      lane_ = std::make_unique<Lane>(context.group, name_, phases_of(options_));
    }
  }

  Future reduce(Bucket& bucket) override {
    check_dense_floats(name_, bucket, pass_sparse_);
    if (bucket.index() == 0) {
      end_step();
      results_.begin();
    }
    try {
      const bool plain = bucket.is_sparse() || !compresses();
      const Future result = plain ? pass(bucket) : compress(bucket);
      results_.add(result, bucket.is_last());
      return result;
    } catch (...) {
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
    state.numbers["turn"] = static_cast<std::int64_t>(turn_);
    state.shared = bases_.save();
    state.residuals = residuals_.save();
  }

  void load(const HookState& state) override {
    end_step();
    step_ = static_cast<std::uint64_t>(state.numbers.at("step"));
    turn_ = static_cast<std::uint64_t>(state.numbers.at("turn"));
    bases_.load(state.shared);
    residuals_.load(state.residuals);
    buckets_.clear();
  }

  std::vector<ParameterReport> report() const override {
    std::vector<ParameterReport> all;
    for (const auto& [index, low_rank] : buckets_) {
      std::ranges::move(low_rank->report(), std::back_inserter(all));
    }
    return all;
  }

 private:
  bool compresses() const {
    return step_ >= static_cast<std::uint64_t>(options_.start);
  }

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
    LowRank::Step step{
        .bucket = bucket,
        .number = step_,
        .fresh = !options_.warm_start || is_turn(options_.refresh),
        .measure = options_.stats > 0 &&
                   (is_turn(options_.stats) || !planned->measured())};
    step.basis = bases_.of(bucket.index(), planned->basis_entries());
    if (options_.ef) {
      step.residual =
          residuals_.of(bucket.index(), planned->residual_entries());
    }
    auto job = std::make_shared<PowerJob>(
        planned,
        std::move(step),
        sides_of(options_, turn_),
        world_,
        results_.not_finite());
    if (world_ == 1) {
      job->run_alone();
    } else {
      lane_->submit(job);
    }
    return job->future();
  }

  bool is_turn(std::int64_t interval) const {
    return interval > 0 && turn_ % static_cast<std::uint64_t>(interval) == 0;
  }

  // A step that is not finite, or that failed, will not be taken: its losses
  // are none, and its subspace is worth nothing. It counts all the same where
  // steps are counted.
  void end_step() {
    const auto good = results_.end();
    const bool taken = good.value_or(false);
    const bool compressed = taken && compresses();
    turn_ += compressed;
    step_ += good.has_value();
    for (ParameterMemory* memory : {&residuals_, &bases_}) {
      if (taken) {
        memory->commit();
      } else {
        memory->rollback();
      }
    }
    if (compressed && matrices_ == LowRank::Matrices::kBucket) {
      // What spanned buckets that are no more.
      bases_.drop_homeless();
    }
  }

  std::string name_;
  PowerSgdOptions options_;
  LowRank::Matrices matrices_;
  bool pass_sparse_;
  int world_;

  // Steps so far, and those of them that were compressed and taken.
  std::uint64_t step_ = 0;
  std::uint64_t turn_ = 0;
  ParameterMemory residuals_;
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
      .options = powersgd_options(name),
      .tolerance = std::numeric_limits<double>::infinity(),
      .trial = "rank=2,start=0",
      .check =
          [name](const Options& options) {
            to_powersgd_options(name, options);
          }};
  info.options.push_back(sparse_option());
  return info;
}

}  // namespace gradwire
