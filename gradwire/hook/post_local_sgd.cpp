// For local SGD: gradients are averaged over all ranks for a number of steps,
// and from then on within subgroups only. What keeps the parameters of
// different subgroups together is a ModelAverager (optim/).

#include "gradwire/base/error.h"
#include "gradwire/comm/parts.h"
#include "gradwire/hook/hook.h"
#include "gradwire/hook/registry.h"

namespace gradwire {
namespace {

constexpr std::int64_t kMachine = 0;
constexpr std::int64_t kAll = -1;
constexpr const char* kSteps = "post_local_sgd_steps";

Group find_subgroup(const Group& group, std::int64_t size) {
  if (size == kAll) {
    return group;
  }
  return part_of(
      group,
      size == kMachine ? machines_of(group, process_environment())
                       : blocks_of(group, size, "subgroup"));
}

class PostLocalSgd : public Hook {
 public:
  PostLocalSgd(const HookContext& context, const Group& subgroup)
      : start_(context.options.integer("start")),
        wide_(make_inner(context, context.group)),
        near_(subgroup.size() > 1 ? make_inner(context, subgroup) : nullptr) {}

  void begin_step(const Step& step) override {
    if (Hook* hook = current()) {
      hook->begin_step(step);
    }
  }

  Future reduce(Bucket& bucket) override {
    Hook* hook = current();
    return hook ? hook->reduce(bucket) : Future::ready(bucket.buffer());
  }

  void end_step(Step& step) override {
    if (Hook* hook = current()) {
      hook->end_step(step);
    }
    if (step.outcome != Step::Outcome::kFailed && ++steps_ == start_) {
      hand_over();
    }
  }

  void rebuild() override {
    wide_->rebuild();
    if (near_) {
      near_->rebuild();
    }
  }

  void save(HookState& state) override {
    if (Hook* hook = current()) {
      hook->save(state);
    }
    state.numbers[kSteps] = steps_;
  }

  void load(const HookState& state) override {
    steps_ = state.numbers.at(kSteps);
    if (Hook* hook = current()) {
      hook->load(state);
    }
  }

  void check(
      const HookState& state, const Parameters& parameters) const override {
    const auto steps = state.numbers.find(kSteps);
    if (steps == state.numbers.end() || steps->second < 0) {
      fail(
          "hook",
          "the state of 'post_local_sgd' has no number '",
          kSteps,
          "' of 0 or more");
    }
    if (const Hook* hook = after(steps->second)) {
      hook->check(state, parameters);
    }
  }

  bool take_residuals(const std::map<std::string, at::Tensor>& owed) override {
    Hook* hook = current();
    return hook && hook->take_residuals(owed);
  }

  std::vector<ParameterReport> report() const override {
    const Hook* hook = after(steps_);
    return hook ? hook->report() : std::vector<ParameterReport>();
  }

 private:
  static std::unique_ptr<Hook> make_inner(
      const HookContext& context, const Group& group) {
    return context.make_inner ? context.make_inner(group)
                              : make_hook("allreduce", group);
  }

  // Null: every rank keeps its own gradients.
  Hook* after(std::int64_t steps) const {
    return steps < start_ ? wide_.get() : near_.get();
  }
  Hook* current() const {
    return after(steps_);
  }

  // What is owed to all ranks goes to those of the subgroup. A rank by itself
  // has nobody to owe it to.
  void hand_over() {
    HookState state;
    wide_->save(state);
    if (near_) {
      near_->take_residuals(state.residuals);
    }
    wide_->take_residuals({});
  }

  std::int64_t start_;
  std::int64_t steps_ = 0;
  std::unique_ptr<Hook> wide_;
  std::unique_ptr<Hook> near_;
};

}  // namespace

HookInfo post_local_sgd_hook() {
  return {
      .name = "post_local_sgd",
      .summary = "averages over all ranks at first, then within subgroups",
      .make = [](const HookContext& context) -> std::unique_ptr<Hook> {
        const Group subgroup =
            find_subgroup(context.group, context.options.integer("subgroup"));
        return std::make_unique<PostLocalSgd>(context, subgroup);
      },
      .options =
          {{.name = "start",
            .fallback = std::int64_t{0},
            .help = "steps that average over all ranks",
            .least = 0},
           {.name = "subgroup",
            .fallback = kMachine,
            .help = "ranks that go on averaging with each other; 1: none do",
            .least = 1,
            .named = {{"machine", kMachine}, {"all", kAll}}}},
      .wraps = HookInfo::Wraps::kOptionally,
      .trial = "subgroup=all"};
}

}  // namespace gradwire
