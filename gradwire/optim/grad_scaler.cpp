#include "gradwire/optim/grad_scaler.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"

namespace gradwire {
namespace {

std::vector<Fact> inspect_scaler(const GradScalerOptions& options) {
  const auto check =
      [](const char* option, double value, bool fits, const char* expected) {
        if (!fits || !std::isfinite(value)) {
          fail("optim", "GradScaler: ", option, " is ", value, ", ", expected);
        }
      };
  check(
      "init_scale",
      options.init_scale,
      options.init_scale >= std::numeric_limits<float>::min() &&
          options.init_scale <= std::numeric_limits<float>::max(),
      "expected a float of more than 0");
  check(
      "growth_factor",
      options.growth_factor,
      options.growth_factor > 1,
      "expected more than 1");
  check(
      "backoff_factor",
      options.backoff_factor,
      options.backoff_factor > 0 && options.backoff_factor < 1,
      "expected more than 0 and less than 1");
  check(
      "growth_interval",
      static_cast<double>(options.growth_interval),
      options.growth_interval > 0,
      "expected more than 0");
  return {
      {"init_scale", concat(options.init_scale)},
      {"growth_factor", concat(options.growth_factor)},
      {"backoff_factor", concat(options.backoff_factor)},
      {"growth_interval", concat(options.growth_interval)},
      {"enabled", concat(options.enabled)}};
}

// The numbers of a gradient, dense and real.
at::Tensor numbers_of(const at::Tensor& gradient) {
  at::Tensor numbers = gradient.is_sparse() ? gradient._values() : gradient;
  if (numbers.scalar_type() == at::kHalf) {
    fail(
        "optim",
        "GradScaler got a gradient of Half, expected full precision: what is "
        "divided by the scale in fp16 is lost; keep masters, see "
        "DistributedDataParallelOptions::precision");
  }
  return numbers.is_complex() ? at::view_as_real(numbers) : numbers;
}

// By device and type, each once.
auto numbers_by_kind(const std::vector<at::Tensor>& parameters) {
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>>
      kinds;
  std::set<const void*> seen;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined() &&
        seen.insert(gradient.unsafeGetTensorImpl()).second) {
      auto numbers = numbers_of(gradient);
      kinds[{numbers.device().str(), numbers.scalar_type()}].push_back(
          std::move(numbers));
    }
  }
  return kinds;
}

std::vector<at::Tensor> parameters_of(
    const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(
        parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  if (options_.group && *options_.group) {
    agree_checked(*options_.group, "GradScaler", [&] {
      return inspect_scaler(options_);
    });
  } else {
    inspect_scaler(options_);
  }
  scale_ = options_.enabled ? static_cast<float>(options_.init_scale) : 1;
}

double GradScaler::scale() const {
  return scale_;
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) {
    return loss;
  }
  const bool is_short =
      loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16;
  return (is_short ? loss.to(at::kFloat) : loss).mul(scale_);
}

bool GradScaler::divide(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const auto inverse = static_cast<float>(1.0 / scale_);
  bool finite = true;
  for (const auto& [kind, numbers] : numbers_by_kind(parameters)) {
    const auto options = numbers.front().options().dtype(at::kFloat);
    auto not_finite = at::full({}, 0, options);
    at::_amp_foreach_non_finite_check_and_unscale_(
        numbers, not_finite, at::full({}, inverse, options));
    finite = finite && not_finite.item<float>() == 0;
  }
  return finite;
}

bool GradScaler::unscale_(const std::vector<at::Tensor>& parameters) {
  return !options_.enabled || note(divide(parameters));
}

GradScaler::Progress& GradScaler::unscaled(
    const torch::optim::Optimizer& optimizer) {
  const auto [entry, is_new] = progress_.try_emplace(&optimizer);
  if (is_new) {
    entry->second.finite = unscale_(parameters_of(optimizer));
  }
  return entry->second;
}

void GradScaler::unscale_(const torch::optim::Optimizer& optimizer) {
  const auto known = progress_.find(&optimizer);
  if (known != progress_.end()) {
    fail(
        "optim",
        "GradScaler: unscale_ was called after ",
        known->second.stepped ? "step" : "unscale_",
        " of the same optimizer, expected update() between them");
  }
  unscaled(optimizer);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  Progress& progress = unscaled(optimizer);
  if (std::exchange(progress.stepped, true)) {
    fail(
        "optim",
        "GradScaler: step was called twice for one optimizer, expected "
        "update() between them");
  }
  if (progress.finite) {
    optimizer.step();
  }
  return progress.finite;
}

bool GradScaler::note(bool finite) {
  if (options_.group && *options_.group && options_.group->size() > 1) {
    auto failures = at::full(
        {},
        finite ? 0 : 1,
        at::TensorOptions().dtype(at::kFloat).device(options_.group->device()));
    options_.group->all_reduce(failures).wait();
    finite = failures.item<float>() == 0;
  }
  noted_ = true;
  finite_ = finite_ && finite;
  return finite;
}

void GradScaler::update() {
  progress_.clear();
  const bool noted = std::exchange(noted_, false);
  const bool finite = std::exchange(finite_, true);
  if (!options_.enabled) {
    return;
  }
  if (!noted) {
    fail(
        "optim",
        "GradScaler: update was called before the gradients of this iteration "
        "were looked at, expected step, unscale_ or note before it");
  }
  if (!finite) {
    // A scale of zero would stay.
    scale_ = std::max(
        static_cast<float>(scale_ * options_.backoff_factor),
        std::numeric_limits<float>::min());
    finite_steps_ = 0;
  } else if (++finite_steps_ == options_.growth_interval) {
    const auto grown = static_cast<float>(scale_ * options_.growth_factor);
    scale_ = std::isfinite(grown) ? grown : scale_;
    finite_steps_ = 0;
  }
}

GradScalerState GradScaler::state() const {
  return {scale(), finite_steps_};
}

void GradScaler::load(const GradScalerState& state) {
  const auto loaded = static_cast<float>(state.scale);
  if (!std::isfinite(loaded) || loaded < std::numeric_limits<float>::min() ||
      state.finite_steps < 0 ||
      state.finite_steps >= options_.growth_interval) {
    fail(
        "optim",
        "GradScaler got a state of scale ",
        state.scale,
        " after ",
        state.finite_steps,
        " finite steps, expected a scale of more than 0 and from 0 to less "
        "than ",
        options_.growth_interval,
        " steps");
  }
  if (options_.enabled) {
    scale_ = loaded;
    finite_steps_ = state.finite_steps;
  }
}

}  // namespace gradwire
