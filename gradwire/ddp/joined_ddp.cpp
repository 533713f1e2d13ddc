#include "gradwire/ddp/joined_ddp.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/engine_impl.h"
#include "gradwire/ddp/join.h"

namespace gradwire {
namespace {

constexpr std::int64_t kLong = 1000;

const char* name_of(std::int64_t event) {
  switch (static_cast<JoinedDdp::Event>(event)) {
    case JoinedDdp::Event::kForward:
      return "a forward";
    case JoinedDdp::Event::kLocalForward:
      return "a forward inside no_sync";
    case JoinedDdp::Event::kBackward:
      return "a backward";
  }
  return "something unknown";
}

}  // namespace

JoinedDdp::JoinedDdp(DdpEngine& engine, const JoinOptions& options)
    : engine_(engine),
      rank_(engine.parent().rank()),
      world_(engine.parent().size()),
      divides_by_active_(!options.divide_by_initial_world_size),
      throws_(options.throw_on_early_termination),
      control_(engine.parent().duplicate("join")) {}

JoinedDdp::Roster JoinedDdp::exchange(std::int64_t own) {
  const at::NoGradGuard no_grad;
  const Group control = this->control();
  auto events = at::zeros(
      {world_}, at::TensorOptions(at::kLong).device(control.device()));
  events[rank_] = own;
  control.all_reduce(events).wait();
  const at::Tensor here = events.cpu();
  const auto* each = here.const_data_ptr<std::int64_t>();
  Roster roster;
  for (int rank = 0; rank < world_; ++rank) {
    if (each[rank] == 0) {
      continue;
    }
    if (roster.event && *roster.event != static_cast<Event>(each[rank])) {
      fail_at(
          {.rank = rank_},
          "ddp",
          "ranks in a Join do different things: rank ",
          roster.lead,
          " begins ",
          name_of(each[roster.lead]),
          ", rank ",
          rank,
          " ",
          name_of(each[rank]));
    }
    roster.event = static_cast<Event>(each[rank]);
    roster.lead = rank;
    ++roster.active;
  }
  if (roster.active > 0) {
    last_ = roster;
  }
  return roster;
}

JoinedDdp::Roster JoinedDdp::announce(Event event) {
  const Roster roster = exchange(static_cast<std::int64_t>(event));
  if (throws_ && roster.active < world_) {
    fail_at(
        {.rank = rank_},
        "ddp",
        world_ - roster.active,
        " of ",
        world_,
        " ranks have no more input, and throw_on_early_termination is set");
  }
  return roster;
}

void JoinedDdp::mirror() {
  engine_.impl_->check_finished();
  for (;;) {
    const Roster roster = exchange(0);
    if (roster.active == 0) {
      break;
    }
    if (throws_) {
      fail(
          "ddp",
          "rank ",
          rank_,
          " has no more input while ",
          roster.active,
          " of ",
          world_,
          " ranks have, and throw_on_early_termination is set");
    }
    follow(roster);
  }
  // Where nobody had any input nothing has changed.
  if (last_) {
    engine_.impl_->broadcast(engine_.impl_->model.state, last_->lead);
    engine_.impl_->hooked->skip_sent();
  }
}

void JoinedDdp::follow(const Roster& roster) {
  auto& impl = *engine_.impl_;
  switch (*roster.event) {
    case Event::kForward:
    case Event::kLocalForward:
      warn_when_long();
      impl.shadow_forward(*roster.event == Event::kForward, roster.lead);
      break;
    case Event::kBackward:
      impl.shadow_backward();
      break;
  }
}

void JoinedDdp::warn_when_long() {
  if (++mirrored_ == kLong) {
    TORCH_WARN(
        "[gradwire.ddp] rank ",
        rank_,
        " has had no input for ",
        kLong,
        " forwards of others: distribute the input more evenly");
  }
}

Group JoinedDdp::control() {
  const std::lock_guard lock(control_mutex_);
  if (!control_) {
    fail_at({.rank = rank_}, "ddp", "the Join is over");
  }
  return control_;
}

void JoinedDdp::close() {
  Group ending;
  const std::lock_guard lock(control_mutex_);
  std::swap(ending, control_);
}

}  // namespace gradwire
