#include "gradwire/optim/diloco_impl.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gradwire/base/error.h"
#include "gradwire/optim/training_record.h"

namespace gradwire {
namespace {

void check_share(const char* name, double value) {
  if (!(value >= 0 && value <= 1)) {
    fail("optim", name, " is ", value, ", expected from 0 to 1");
  }
}

void check_fragments(const DiLoCoOptions& options, std::size_t parameters) {
  const std::int64_t period = options.period;
  const std::int64_t count = options.fragments;
  const auto most = std::min(period, static_cast<std::int64_t>(parameters));
  if (count < 1 || count > most) {
    fail(
        "optim",
        "fragments is ",
        count,
        " for ",
        parameters,
        " parameters and a period of ",
        period,
        ", expected from 1 to ",
        most);
  }
  if (options.delay < 0 || options.delay > period / count) {
    fail(
        "optim",
        "delay is ",
        options.delay,
        ", expected from 0 to period / fragments = ",
        period / count);
  }
  if (options.mix > 0 && options.delay == 0) {
    fail("optim", "mix is ", options.mix, " without a delay, expected 0");
  }
}

// The larger a parameter the earlier it is placed, where there is least so far.
std::vector<std::size_t> balance_fragments(
    const NamedTensorList& parameters, std::size_t fragments) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) {
    return parameters[i].tensor.numel();
  });
  std::vector<std::int64_t> load(fragments);
  std::vector<std::size_t> fragment_of(parameters.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(load);
    fragment_of[i] = static_cast<std::size_t>(least - load.begin());
    // One at least: empty parameters are spread as well.
    *least += std::max<std::int64_t>(parameters[i].tensor.numel(), 1);
  }
  return fragment_of;
}

}  // namespace

DiLoCo::Impl::Impl(
    const Group& all_ranks,
    const NamedTensorList& list,
    const DiLoCoOptions& given)
    : group(all_ranks), parameters(list), options(given) {
  agree_checked(group, "DiLoCo", [&] { return check_arguments(); });
  make_fragments();
  std::vector<NamedTensorList> lists;
  lists.reserve(fragments.size());
  for (const Fragment& fragment : fragments) {
    lists.push_back(fragment.parameters);
  }
  exchange = std::make_unique<TensorExchange>(
      group, averaging_hook(options.average), lists, "DiLoCo");
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    make_anchors(i);
  }
}

std::vector<Fact> DiLoCo::Impl::check_arguments() const {
  const auto& [period, lr, momentum, average, count, delay, mix] = options;
  if (period < 1) {
    fail("optim", "period is ", period, ", expected 1 or more");
  }
  if (!(lr > 0 && std::isfinite(lr))) {
    fail("optim", "outer_lr is ", lr, ", expected more than 0");
  }
  check_share("outer_momentum", momentum);
  check_share("mix", mix);
  auto facts = facts_of(parameters);
  check_fragments(options, parameters.size());
  facts.push_back({"period", concat(period)});
  facts.push_back({"outer_lr", concat(lr)});
  facts.push_back({"outer_momentum", concat(momentum)});
  facts.push_back({"average", averaging_hook(average).text()});
  facts.push_back({"fragments", concat(count)});
  facts.push_back({"delay", concat(delay)});
  facts.push_back({"mix", concat(mix)});
  return facts;
}

void DiLoCo::Impl::make_fragments() {
  fragments.resize(static_cast<std::size_t>(options.fragments));
  const auto fragment_of = balance_fragments(parameters, fragments.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    fragments[fragment_of[i]].parameters.push_back(parameters[i]);
  }
}

void DiLoCo::Impl::make_anchors(std::size_t index) {
  const c10::NoGradGuard no_grad;
  auto& [list, anchors, momenta, apart] = fragments[index];
  const NamedTensorList rooms = rooms_of(index);
  for (std::size_t i = 0; i < list.size(); ++i) {
    at::Tensor(rooms[i].tensor).copy_(TensorExchange::as_real(list[i].tensor));
  }
  exchange->broadcast(index);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& [name, room] = rooms[i];
    TensorExchange::as_real(list[i].tensor).copy_(room);
    anchors.push_back({name, room.clone()});
    momenta.push_back({name, at::zeros_like(room)});
  }
}

NamedTensorList DiLoCo::Impl::rooms_of(std::size_t index) const {
  NamedTensorList rooms;
  for (const NamedTensor& each : fragments[index].parameters) {
    rooms.push_back({each.name, exchange->room(index, rooms.size())});
  }
  return rooms;
}

void DiLoCo::Impl::step() {
  ++steps;
  for (Fragment& fragment : fragments) {
    fragment.apart = true;
  }
  if (pending && steps >= pending->due) {
    arrive();
  }
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    if (is_due(i)) {
      start(i);
      if (options.delay == 0) {
        arrive();
      }
    }
  }
}

bool DiLoCo::Impl::is_due(std::size_t fragment) const {
  const auto offset =
      static_cast<std::int64_t>(fragment) * options.period / options.fragments;
  return steps % options.period == offset;
}

void DiLoCo::Impl::start(std::size_t index) {
  const c10::NoGradGuard no_grad;
  const Fragment& fragment = fragments[index];
  for (std::size_t i = 0; i < fragment.parameters.size(); ++i) {
    at::Tensor room = exchange->room(index, i);
    at::sub_out(
        room,
        fragment.anchors[i].tensor,
        TensorExchange::as_real(fragment.parameters[i].tensor));
  }
  exchange->start(index);
  pending = {index, steps + options.delay};
}

void DiLoCo::Impl::arrive() {
  const Pending arriving = *pending;
  pending.reset();
  if (!arriving.arrived) {
    exchange->finish();
  }
  outer_step(arriving.fragment);
}

void DiLoCo::Impl::outer_step(std::size_t index) {
  const c10::NoGradGuard no_grad;
  Fragment& fragment = fragments[index];
  for (std::size_t i = 0; i < fragment.parameters.size(); ++i) {
    at::Tensor difference = exchange->room(index, i);
    at::Tensor anchor = fragment.anchors[i].tensor;
    at::Tensor momentum = fragment.momenta[i].tensor;
    momentum.mul_(options.outer_momentum).add_(difference);
    difference.add_(momentum, options.outer_momentum);
    anchor.add_(difference, -options.outer_lr);
    at::Tensor own = TensorExchange::as_real(fragment.parameters[i].tensor);
    if (options.mix > 0) {
      own.mul_(options.mix).add_(anchor, 1 - options.mix);
    } else {
      own.copy_(anchor);
    }
  }
  fragment.apart = options.mix > 0;
  ++outer_steps;
}

void DiLoCo::Impl::finish() {
  const c10::NoGradGuard no_grad;
  if (pending) {
    arrive();
  }
  for (std::size_t f = 0; f < fragments.size(); ++f) {
    const NamedTensorList& list = fragments[f].parameters;
    for (std::size_t i = 0; fragments[f].apart && i < list.size(); ++i) {
      at::Tensor(exchange->room(f, i))
          .copy_(TensorExchange::as_real(list[i].tensor));
    }
    if (fragments[f].apart) {
      exchange->average_exactly(f);
    }
  }
  // All of them have arrived: nothing is left half done.
  for (std::size_t f = 0; f < fragments.size(); ++f) {
    auto& [list, anchors, momenta, apart] = fragments[f];
    for (std::size_t i = 0; apart && i < list.size(); ++i) {
      TensorExchange::as_real(list[i].tensor).copy_(exchange->room(f, i));
      at::Tensor(anchors[i].tensor).copy_(exchange->room(f, i));
    }
    apart = false;
  }
}

}  // namespace gradwire
