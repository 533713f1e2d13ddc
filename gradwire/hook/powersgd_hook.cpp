#include "gradwire/hook/powersgd_hook.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "gradwire/base/error.h"
#include "gradwire/hook/dense.h"
#include "gradwire/hook/stateful_hook.h"

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

const char* name_of(Side side) {
  return side == Side::kLeft ? "P" : "Q";
}

// One all-reduce each, and one phase without.
std::vector<Lane::Phase> phases_of(const PowerSgdOptions& options) {
  std::vector<Lane::Phase> phases;
  for (const Side side : sides_of(options, 0)) {
    phases.push_back({options.alternate ? "P or Q" : name_of(side), 1});
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
      std::shared_ptr<std::atomic<bool>> not_finite)
      : low_rank_(std::move(low_rank)),
        begin_(std::move(step)),
        sides_(std::move(sides)),
        world_(world),
        not_finite_(std::move(not_finite)) {
    for (const Side side : sides_) {
      steps_.push_back(Job::step(name_of(side), &PowerJob::send));
    }
    steps_.push_back(Job::step("reconstruct", &PowerJob::finish));
  }

  std::span<const Step> steps() const override {
    return steps_;
  }
  // Of a world of one, on the calling thread.
  void run_alone() {
    for (const Step& step : steps_) {
      (this->*step.run)({});
    }
  }

 private:
  void send(const Lane::Groups& groups) {
    if (begin_) {
      low_rank_->begin(std::move(*begin_), world_);
      begin_.reset();
    }
    const at::Tensor sent = low_rank_->project(sides_[sent_++]);
    if (world_ > 1 && sent.numel() > 0) {
      await(groups[0].all_reduce(sent));
    }
  }
  void finish(const Lane::Groups&) {
    if (!low_rank_->finish()) {
      *not_finite_ = true;
    }
  }

  std::shared_ptr<LowRank> low_rank_;
  std::optional<LowRank::Step> begin_;
  std::vector<Side> sides_;
  std::size_t sent_ = 0;
  std::vector<Step> steps_;
  int world_;
  std::shared_ptr<std::atomic<bool>> not_finite_;
};

at::ScalarType memory_type(const PowerSgdOptions& options) {
  return options.memory == "bf16"   ? at::kBFloat16
         : options.memory == "fp16" ? at::kHalf
                                    : at::kFloat;
}

std::vector<Option> options_of(const std::string& name) {
  auto options = powersgd_options(name);
  options.push_back(sparse_option());
  return options;
}

class PowerSgdHook : public StatefulHook {
 public:
  PowerSgdHook(
      const std::string& name,
      const HookContext& context,
      const PowerSgdOptions& options,
      LowRank::Matrices matrices)
      : StatefulHook(
            {.name = name,
             .spec = to_spec(name, options_of(name), context.options),
             .feedback = options.ef,
             .memory = memory_type(options),
             .compresses_alone = true,
             .pass_sparse = passes_sparse(context.options)},
            context.group,
            phases_of(options)),
        options_(options),
        matrices_(matrices),
        bases_(
            "subspace",
            at::TensorOptions(at::kFloat).device(context.group.device())) {}

  ~PowerSgdHook() override {
    stop_lane();
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
    return steps() >= static_cast<std::uint64_t>(options_.start);
  }

  bool passes(const Bucket&) const override {
    return !compresses();
  }

  Future compress(const Bucket& bucket) override {
    std::shared_ptr<LowRank>& planned = buckets_[bucket.index()];
    if (!planned || !planned->fits(bucket)) {
      planned = std::make_shared<LowRank>(bucket, options_, matrices_);
    }
    LowRank::Step step{
        .bucket = bucket,
        .number = steps(),
        .fresh = !options_.warm_start || is_turn(options_.refresh),
        .measure = options_.stats > 0 &&
                   (is_turn(options_.stats) || !planned->measured())};
    step.basis = bases_.of(bucket.index(), planned->basis_entries());
    if (has_feedback()) {
      step.residual =
          residuals().of(bucket.index(), planned->residual_entries());
    }
    for (const std::size_t i : planned->in_full()) {
      pay(bucket, i);
    }
    auto job = std::make_shared<PowerJob>(
        planned,
        std::move(step),
        sides_of(options_, turn_),
        world(),
        not_finite());
    if (world() == 1) {
      job->run_alone();
      return Future::ready(bucket.buffer());
    }
    return lane()->submit(std::move(job), bucket.buffer());
  }

  bool is_turn(std::int64_t interval) const {
    return interval > 0 && turn_ % static_cast<std::uint64_t>(interval) == 0;
  }

  // The subspace of a step that is not taken is worth nothing, but the step
  // counts all the same where steps are counted.
  void settle(bool taken) override {
    if (!taken) {
      bases_.rollback();
      return;
    }
    bases_.commit();
    turn_ += compresses();
    if (compresses() && matrices_ == LowRank::Matrices::kBucket) {
      // What spanned buckets that are no more.
      bases_.forget_unplaced();
    }
  }

  void forget_buckets() override {
    bases_.rebuild();
    buckets_.clear();
  }

  void save_more(HookState& state) override {
    state.numbers["turn"] = static_cast<std::int64_t>(turn_);
    state.shared = bases_.save();
  }

  void load_more(const HookState& state) override {
    turn_ = static_cast<std::uint64_t>(state.numbers.at("turn"));
    bases_.load(state.shared);
  }

  // A matrix may have as many elements and another shape.
  void check_more(
      const HookState& state, const Parameters& parameters) const override {
    check_count(state, "turn");
    bases_.check(state.shared);
    if (matrices_ == LowRank::Matrices::kBucket) {
      return;
    }
    for (const auto& parameter : parameters) {
      const Bucket alone(
          0,
          true,
          at::empty({parameter->reals()}, parameter->tensor.scalar_type()),
          {parameter});
      const LowRank planned(alone, options_, matrices_);
      bases_.check_sizes(state.shared, planned.basis_entries());
    }
  }

  PowerSgdOptions options_;
  LowRank::Matrices matrices_;
  // Steps that were compressed and taken.
  std::uint64_t turn_ = 0;
  ParameterMemory bases_;
  std::map<std::size_t, std::shared_ptr<LowRank>> buckets_;
};

}  // namespace

HookInfo powersgd_info(
    const std::string& name,
    const std::string& summary,
    LowRank::Matrices matrices) {
  return {
      .name = name,
      .summary = summary,
      .make = [name,
               matrices](const HookContext& context) -> std::unique_ptr<Hook> {
        const auto options = to_powersgd_options(name, context.options);
        return std::make_unique<PowerSgdHook>(name, context, options, matrices);
      },
      .options = options_of(name),
      .tolerance = std::numeric_limits<double>::infinity(),
      .trial = "rank=2,start=0",
      .check =
          [name](const Options& options) {
            to_powersgd_options(name, options);
          }};
}

}  // namespace gradwire
