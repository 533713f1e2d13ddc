#include "gradwire/optim/model_averager_impl.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "gradwire/base/error.h"
#include "gradwire/comm/parts.h"
#include "gradwire/optim/training_record.h"

namespace gradwire {
namespace {

bool is_averaged(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

NamedTensorList select_averaged(const NamedTensorList& tensors, bool averaged) {
  NamedTensorList result;
  for (const NamedTensor& each : tensors) {
    if (is_averaged(each.tensor) == averaged) {
      result.push_back(each);
    }
  }
  return result;
}

}  // namespace

ModelAverager::Impl::Impl(
    const Group& all_ranks,
    const NamedTensorList& list,
    const ModelAveragerOptions& given,
    const std::vector<Level>& levels,
    const std::string& class_name)
    : group(all_ranks), tensors(list), options(given), name(class_name) {
  agree_checked(group, name, [&] { return check_arguments(levels); });
  averaged = select_averaged(tensors, true);
  others = std::make_unique<FirstRank>(select_averaged(tensors, false));
  const HookSpec hook = averaging_hook(options.average);
  for (const Level& level : levels) {
    const Group part =
        part_of(group, blocks_of(group, level.ranks, "ranks of a period"));
    tiers.push_back(
        {level,
         std::make_unique<TensorExchange>(
             part, hook, std::vector<NamedTensorList>{averaged}, name)});
  }
  if (!hook.is_plain_average()) {
    make_anchors();
  }
}

std::vector<Fact> ModelAverager::Impl::check_arguments(
    const std::vector<Level>& levels) const {
  if (options.warmup < 0) {
    fail("optim", "warmup is ", options.warmup, ", expected 0 or more");
  }
  check_levels(levels);
  auto facts = facts_of(tensors);
  facts.push_back({"warmup", concat(options.warmup)});
  facts.push_back({"average", averaging_hook(options.average).text()});
  for (const Level& level : levels) {
    facts.push_back(
        {"a period", concat(level.period, " within ", level.ranks, " ranks")});
  }
  return facts;
}

void ModelAverager::Impl::check_levels(const std::vector<Level>& levels) const {
  if (levels.empty()) {
    fail("optim", "there are no periods, expected at least one");
  }
  std::int64_t before = 0;
  for (const auto& [ranks, period] : levels) {
    if (period < 1) {
      fail("optim", "period is ", period, ", expected 1 or more");
    }
    const bool fits =
        before == 0 ? ranks >= 1 : ranks > before && ranks % before == 0;
    if (!fits) {
      fail(
          "optim",
          "period ",
          period,
          " is within ",
          ranks,
          " ranks, expected ",
          before == 0 ? "1 or more" : concat("a larger multiple of ", before));
    }
    before = ranks;
  }
  if (before != group.size()) {
    fail(
        "optim",
        "the longest period is within ",
        before,
        " ranks, expected all ",
        group.size());
  }
}

// Changes are relative to something that all ranks have alike from the start:
// what the first one has.
void ModelAverager::Impl::make_anchors() {
  TensorExchange& widest = *tiers.back().exchange;
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < averaged.size(); ++i) {
    at::Tensor(widest.room(0, i))
        .copy_(TensorExchange::as_real(averaged[i].tensor));
  }
  widest.broadcast(0);
  for (Tier& tier : tiers) {
    for (std::size_t i = 0; i < averaged.size(); ++i) {
      tier.anchors.push_back({averaged[i].name, widest.room(0, i).clone()});
    }
  }
}

void ModelAverager::Impl::fill_rooms(const Tier& tier) const {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < averaged.size(); ++i) {
    const at::Tensor own = TensorExchange::as_real(averaged[i].tensor);
    at::Tensor room = tier.exchange->room(0, i);
    if (sends_changes()) {
      at::sub_out(room, own, tier.anchors[i].tensor);
    } else {
      room.copy_(own);
    }
  }
}

// Ranks of a block are ranks of a larger one: its average is theirs too.
void ModelAverager::Impl::take_rooms(std::size_t tier) {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < averaged.size(); ++i) {
    at::Tensor room = tiers[tier].exchange->room(0, i);
    if (sends_changes()) {
      room.add_(tiers[tier].anchors[i].tensor);
      for (std::size_t inner = 0; inner <= tier; ++inner) {
        tiers[inner].anchors[i].tensor.copy_(room);
      }
    }
    TensorExchange::as_real(averaged[i].tensor).copy_(room);
  }
}

void ModelAverager::Impl::average(std::size_t tier) {
  TensorExchange& exchange = *tiers[tier].exchange;
  fill_rooms(tiers[tier]);
  exchange.start(0);
  const Future rest = others->start(exchange.group());
  exchange.finish();
  rest.wait();
  take_rooms(tier);
  others->take();
  ++averages;
}

HookOwner ModelAverager::Impl::owner() const {
  return owner_of(
      concat(name, '(', averaging_hook(options.average).text(), ')'),
      tensors,
      "averager");
}

HookState ModelAverager::Impl::save() const {
  HookState state;
  state.numbers["step"] = step;
  state.numbers["averages"] = averages;
  add_part(state, "local", shared_copies_of(tensors));
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    add_part(state, concat("hook", i), tiers[i].exchange->state());
    add_part(state, concat("anchor", i), shared_copies_of(tiers[i].anchors));
  }
  return state;
}

void ModelAverager::Impl::check(const HookState& state) const {
  number_in(state, "step", 0);
  number_in(state, "averages", 0);
  check_part("local", state, tensors);
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    check_part(concat("anchor", i), state, tiers[i].anchors);
    tiers[i].exchange->check(take_part(state, concat("hook", i)));
  }
}

void ModelAverager::Impl::load(const HookState& state) {
  step = state.numbers.at("step");
  averages = state.numbers.at("averages");
  copy_into(tensors, take_part(state, "local"));
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    tiers[i].exchange->load(take_part(state, concat("hook", i)));
    copy_into(tiers[i].anchors, take_part(state, concat("anchor", i)));
  }
}

}  // namespace gradwire
