#include "gradwire/optim/model_averager.h"

#include "gradwire/base/error.h"
#include "gradwire/optim/model_averager_impl.h"
#include "gradwire/optim/training_record.h"

namespace gradwire {

ModelAverager::ModelAverager(
    const Group& group,
    const NamedTensorList& tensors,
    const ModelAveragerOptions& options,
    const std::vector<Level>& levels,
    const std::string& name)
    : impl_(std::make_unique<Impl>(group, tensors, options, levels, name)) {}

ModelAverager::~ModelAverager() = default;

void ModelAverager::average_parameters() {
  if (impl_->step >= impl_->options.warmup) {
    for (std::size_t i = impl_->tiers.size(); i-- > 0;) {
      if (is_due(impl_->tiers[i].level, impl_->step)) {
        impl_->average(i);
        break;
      }
    }
  }
  ++impl_->step;
}

void ModelAverager::average_now() {
  impl_->average(impl_->tiers.size() - 1);
}

std::int64_t ModelAverager::step() const {
  return impl_->step;
}

void ModelAverager::set_step(std::int64_t step) {
  if (step < 0) {
    fail("optim", "step is ", step, ", expected 0 or more");
  }
  impl_->step = step;
}

std::int64_t ModelAverager::warmup() const {
  return impl_->options.warmup;
}

AveragerStats ModelAverager::stats() const {
  AveragerStats stats{impl_->step, impl_->averages};
  for (const auto& tier : impl_->tiers) {
    stats.sent = stats.sent + tier.exchange->sent();
  }
  return stats;
}

void ModelAverager::save(const std::string& folder) const {
  save_hook_state(impl_->group, folder, impl_->owner(), [&] {
    return saved_with(impl_->tensors, impl_->save());
  });
}

void ModelAverager::load(const std::string& folder) {
  const SavedHook saved = load_hook_state(
      impl_->group, folder, impl_->owner(), {}, [&](const HookState& state) {
        impl_->check(state);
      });
  impl_->load(saved.state);
}

HookRecord ModelAverager::state() const {
  return take_hook_state(impl_->group, impl_->owner(), [&] {
    return saved_with(impl_->tensors, impl_->save());
  });
}

void ModelAverager::set_state(const HookRecord& state) {
  const SavedHook saved = give_hook_state(
      impl_->group,
      impl_->owner(),
      [&] { return state; },
      [&](const HookState& each) { impl_->check(each); });
  impl_->load(saved.state);
}

PeriodicModelAverager::PeriodicModelAverager(
    const Group& group,
    const NamedTensorList& tensors,
    const PeriodicModelAveragerOptions& options)
    : ModelAverager(
          group,
          tensors,
          {options.warmup, options.average},
          {{group.size(), options.period}},
          "PeriodicModelAverager") {}

bool PeriodicModelAverager::is_due(
    const Level& level, std::int64_t step) const {
  return (step - warmup()) % level.period == 0;
}

namespace {

template <class Level>
std::vector<Level> levels_of(
    const HierarchicalModelAverager::Periods& periods) {
  std::vector<Level> levels;
  for (const auto& [period, ranks] : periods) {
    levels.push_back({ranks, period});
  }
  return levels;
}

}  // namespace

HierarchicalModelAverager::HierarchicalModelAverager(
    const Group& group,
    const NamedTensorList& tensors,
    const Periods& periods,
    const ModelAveragerOptions& options)
    : ModelAverager(
          group,
          tensors,
          options,
          levels_of<Level>(periods),
          "HierarchicalModelAverager") {}

bool HierarchicalModelAverager::is_due(
    const Level& level, std::int64_t step) const {
  return step % level.period == 0;
}

}  // namespace gradwire
