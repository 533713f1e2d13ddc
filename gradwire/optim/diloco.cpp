// The class that users see, and what is kept of it.

#include "gradwire/optim/diloco.h"

#include <ATen/ops/view_as_complex.h>

#include "gradwire/base/error.h"
#include "gradwire/optim/diloco_impl.h"
#include "gradwire/optim/training_record.h"

namespace gradwire {
namespace {

constexpr std::int64_t kNothingPending = -1;

}  // namespace

NamedTensorList DiLoCo::Impl::all(NamedTensorList Fragment::*tensors) const {
  NamedTensorList result;
  for (const Fragment& each : fragments) {
    const NamedTensorList& own = each.*tensors;
    result.insert(result.end(), own.begin(), own.end());
  }
  return result;
}

HookOwner DiLoCo::Impl::owner() const {
  return owner_of(
      concat("diloco(", averaging_hook(options.average).text(), ')'),
      parameters,
      "diloco");
}

HookState DiLoCo::Impl::save() {
  if (pending && !pending->arrived) {
    exchange->finish();
    pending->arrived = true;
  }
  HookState state;
  state.numbers["step"] = steps;
  state.numbers["outer_steps"] = outer_steps;
  state.numbers["period"] = options.period;
  state.numbers["fragments"] = options.fragments;
  state.numbers["delay"] = options.delay;
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    state.numbers[concat("apart", i)] = fragments[i].apart ? 1 : 0;
  }
  state.numbers["pending"] = kNothingPending;
  if (pending) {
    state.numbers["pending"] = static_cast<std::int64_t>(pending->fragment);
    state.numbers["due"] = pending->due;
    add_part(state, "pending", shared_copies_of(rooms_of(pending->fragment)));
  }
  add_part(state, "local", shared_copies_of(parameters));
  add_part(state, "anchor", shared_copies_of(all(&Fragment::anchors)));
  add_part(state, "momentum", shared_copies_of(all(&Fragment::momenta)));
  add_part(state, "hook", exchange->state());
  return state;
}

void DiLoCo::Impl::check(const HookState& state) const {
  check_number(state, "period", options.period);
  check_number(state, "fragments", options.fragments);
  check_number(state, "delay", options.delay);
  number_in(state, "step", 0);
  number_in(state, "outer_steps", 0);
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    number_in(state, concat("apart", i), 0);
  }
  const auto on_its_way = number_in(state, "pending", kNothingPending);
  if (on_its_way >= options.fragments) {
    fail("optim", "the state has no fragment ", on_its_way);
  }
  if (on_its_way != kNothingPending) {
    number_in(state, "due", 0);
    check_part(
        "pending", state, rooms_of(static_cast<std::size_t>(on_its_way)));
  }
  check_part("local", state, parameters);
  check_part("anchor", state, all(&Fragment::anchors));
  check_part("momentum", state, all(&Fragment::momenta));
  exchange->check(take_part(state, "hook"));
}

void DiLoCo::Impl::load(const HookState& state) {
  if (pending && !pending->arrived) {
    exchange->finish();
  }
  pending.reset();
  steps = state.numbers.at("step");
  outer_steps = state.numbers.at("outer_steps");
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    fragments[i].apart = state.numbers.at(concat("apart", i)) != 0;
  }
  copy_into(parameters, take_part(state, "local"));
  copy_into(all(&Fragment::anchors), take_part(state, "anchor"));
  copy_into(all(&Fragment::momenta), take_part(state, "momentum"));
  exchange->load(take_part(state, "hook"));
  if (const auto on_its_way = state.numbers.at("pending");
      on_its_way != kNothingPending) {
    const auto fragment = static_cast<std::size_t>(on_its_way);
    copy_into(rooms_of(fragment), take_part(state, "pending"));
    pending = {fragment, state.numbers.at("due"), true};
  }
}

DiLoCo::DiLoCo(
    const Group& group,
    const NamedTensorList& parameters,
    const DiLoCoOptions& options)
    : impl_(std::make_unique<Impl>(group, parameters, options)) {}

DiLoCo::~DiLoCo() = default;

void DiLoCo::step() {
  impl_->step();
}

void DiLoCo::finish() {
  impl_->finish();
}

NamedTensorList DiLoCo::anchor() const {
  NamedTensorList result;
  const NamedTensorList anchors = impl_->all(&Impl::Fragment::anchors);
  for (const auto& [name, parameter] : impl_->parameters) {
    for (const NamedTensor& each : anchors) {
      if (each.name == name) {
        result.push_back(
            {name,
             parameter.is_complex() ? at::view_as_complex(each.tensor)
                                    : each.tensor});
      }
    }
  }
  return result;
}

DiLoCoStats DiLoCo::stats() const {
  return {impl_->steps, impl_->outer_steps, impl_->exchange->sent()};
}

void DiLoCo::save(const std::string& folder) {
  save_hook_state(impl_->group, folder, impl_->owner(), [&] {
    return saved_with(impl_->parameters, impl_->save());
  });
}

void DiLoCo::load(const std::string& folder) {
  const SavedHook saved = load_hook_state(
      impl_->group, folder, impl_->owner(), {}, [&](const HookState& state) {
        impl_->check(state);
      });
  impl_->load(saved.state);
}

HookRecord DiLoCo::state() {
  return take_hook_state(impl_->group, impl_->owner(), [&] {
    return saved_with(impl_->parameters, impl_->save());
  });
}

void DiLoCo::set_state(const HookRecord& state) {
  const SavedHook saved = give_hook_state(
      impl_->group,
      impl_->owner(),
      [&] { return state; },
      [&](const HookState& each) { impl_->check(each); });
  impl_->load(saved.state);
}

}  // namespace gradwire
