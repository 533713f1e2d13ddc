#include "apps/gradwire/train/stepper.h"

#include <torch/torch.h>

#include <bit>
#include <charconv>
#include <sstream>

#include "apps/gradwire/train/optimizers.h"
#include "gradwire/base/error.h"
#include "gradwire/optim/optimizer_overlap.h"
#include "gradwire/optim/zero_overlap.h"

namespace gradwire::apps {
namespace {

bool is_local(const TrainOptions& options) {
  return options.local_sgd > 0 || !options.diloco.empty();
}

// "32" or "32,int4": the period, and the spec of the hook that averages.
DiLoCoOptions parse_diloco(const std::string& text) {
  DiLoCoOptions options;
  const std::size_t comma = std::min(text.find(','), text.size());
  const char* end = text.data() + comma;
  const auto [rest, error] = std::from_chars(text.data(), end, options.period);
  if (error != std::errc() || rest != end || options.period < 1) {
    fail(
        "app",
        "--diloco is '",
        text,
        "', expected a number of steps, or one and a hook: 32,int4");
  }
  if (comma < text.size()) {
    options.average = text.substr(comma + 1);
  }
  check_hook_spec(options.average);
  return options;
}

std::vector<at::Tensor> tensors_in(const NamedTensorList& list) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(list.size());
  for (const NamedTensor& each : list) {
    tensors.push_back(each.tensor);
  }
  return tensors;
}

void exclude(bool both, const char* one, const char* other, const char* why) {
  if (both) {
    fail("app", one, " and ", other, " exclude each other: ", why);
  }
}

}  // namespace

void check_stepping(const TrainOptions& options) {
  find_optimizer(options.optimizer, options.lr, options.momentum);
  if (!options.diloco.empty()) {
    parse_diloco(options.diloco);
  }
  const char* local = options.local_sgd > 0 ? "--local-sgd" : "--diloco";
  exclude(
      options.local_sgd > 0 && !options.diloco.empty(),
      "--local-sgd",
      "--diloco",
      "both say when ranks average");
  exclude(
      options.zero && is_local(options),
      "--zero",
      local,
      "ranks whose parameters differ cannot share a state");
  exclude(
      options.overlap && is_local(options),
      "--overlap",
      local,
      "gradients stay local, so there is nothing to overlap");
  exclude(
      options.zero && options.overlap && options.precision == "fp16",
      "--zero --overlap",
      "--precision fp16",
      "whether a step counts is known when parameters have travelled");
  exclude(
      !options.diloco.empty() && options.hook != "allreduce",
      "--hook",
      "--diloco",
      "it names the hook itself, as in 32,int4");
  if (!options.precision.empty() && options.precision != "bf16" &&
      options.precision != "fp16") {
    fail(
        "app",
        "--precision is '",
        options.precision,
        "', expected bf16 or fp16");
  }
}

Stepper::Stepper(
    const TrainOptions& options,
    const Group& group,
    const NamedTensorList& parameters)
    : options_(options),
      group_(group),
      parameters_(parameters),
      hook_(is_local(options) ? "noop" : options.hook) {
  const SliceOptimizer kind =
      find_optimizer(options.optimizer, options.lr, options.momentum);
  const auto tensors = tensors_in(parameters);
  if (options.zero) {
    auto zero = std::make_unique<ZeroRedundancyOptimizer>(
        group, tensors, kind, ZeroOptions{.names = parameters});
    zero_ = zero.get();
    optimizer_ = std::move(zero);
  } else {
    optimizer_ = kind.make({torch::optim::OptimizerParamGroup(tensors)});
  }
  if (options.precision == "fp16") {
    // Averages are the same on all ranks; local gradients are not.
    scaler_.emplace(GradScalerOptions{
        .group = is_local(options) ? std::optional(group) : std::nullopt});
  }
  if (options.overlap && zero_ != nullptr) {
    hook_ = zero_overlap(options.hook, *zero_);
  } else if (options.overlap) {
    OverlapOptions overlap;
    if (scaler_) {
      overlap.scale = [this] { return scaler_->scale(); };
      overlap.all_or_nothing = true;
    }
    hook_ = optimizer_overlap(options.hook, *optimizer_, overlap);
  }
}

Stepper::~Stepper() = default;

void Stepper::begin() {
  if (options_.local_sgd > 0) {
    averager_ = std::make_unique<PeriodicModelAverager>(
        group_,
        parameters_,
        PeriodicModelAveragerOptions{
            .period = options_.local_sgd, .average = options_.hook});
  } else if (!options_.diloco.empty()) {
    diloco_ = std::make_unique<DiLoCo>(
        group_, parameters_, parse_diloco(options_.diloco));
  }
}

void Stepper::zero_grad() {
  optimizer_->zero_grad();
}

at::Tensor Stepper::scaled(const at::Tensor& loss) const {
  return scaler_ ? scaler_->scale(loss) : loss;
}

void Stepper::step(const std::function<Step::Outcome()>& outcome) {
  if (scaler_) {
    if (options_.overlap) {
      scaler_->note(outcome() == Step::Outcome::kApplied);
    } else {
      scaler_->step(*optimizer_);
    }
    scaler_->update();
  } else if (!options_.overlap) {
    optimizer_->step();
  }
  if (averager_) {
    averager_->average_parameters();
  }
  if (diloco_) {
    diloco_->step();
  }
}

void Stepper::finish() {
  if (averager_) {
    averager_->average_now();
  }
  if (diloco_) {
    diloco_->finish();
  }
}

OptimizerState Stepper::state() {
  return zero_ != nullptr ? zero_->consolidate() : state_of(*optimizer_);
}

void Stepper::set_state(const OptimizerState& state) {
  if (zero_ != nullptr) {
    zero_->load_state(state);
  } else {
    load_state(*optimizer_, state);
  }
}

void Stepper::save(const std::string& folder) {
  if (averager_) {
    averager_->save(folder);
  }
  if (diloco_) {
    diloco_->save(folder);
  }
}

void Stepper::load(const std::string& folder) {
  if (averager_) {
    averager_->load(folder);
  }
  if (diloco_) {
    diloco_->load(folder);
  }
}

std::string Stepper::scaler_state() const {
  if (!scaler_) {
    return "";
  }
  const GradScalerState state = scaler_->state();
  return concat(
      std::bit_cast<std::int64_t>(state.scale), " ", state.finite_steps);
}

void Stepper::set_scaler_state(const std::string& words) {
  if (!scaler_ || words.empty()) {
    return;
  }
  std::istringstream in(words);
  std::int64_t scale = 0;
  std::int64_t finite_steps = 0;
  if (!(in >> scale >> finite_steps)) {
    fail("checkpoint", "the loss scaler's state is '", words, "'");
  }
  scaler_->load({std::bit_cast<double>(scale), finite_steps});
}

std::int64_t Stepper::state_bytes() {
  if (zero_ != nullptr) {
    return zero_->stats().state_bytes;
  }
  std::int64_t bytes = 0;
  for (const ParameterState& each : state_of(*optimizer_).parameters) {
    bytes += gradwire::state_bytes(each);
  }
  return bytes;
}

Bytes Stepper::sent() const {
  return averager_          ? averager_->stats().sent
         : diloco_          ? diloco_->stats().sent
         : zero_ != nullptr ? zero_->stats().sent
                            : Bytes();
}

std::string Stepper::summary() const {
  if (averager_) {
    const auto stats = averager_->stats();
    return concat(
        stats.averages,
        " averages in ",
        stats.steps,
        " steps by ",
        options_.hook);
  }
  if (diloco_) {
    const auto stats = diloco_->stats();
    return concat(stats.outer_steps, " outer steps in ", stats.steps, " steps");
  }
  if (zero_ != nullptr) {
    return concat(
        "optimizer state of ",
        zero_->stats().state_bytes,
        " bytes on rank ",
        group_.rank());
  }
  return "";
}

}  // namespace gradwire::apps
