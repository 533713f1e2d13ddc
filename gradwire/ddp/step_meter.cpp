#include "gradwire/ddp/step_meter.h"

#include <algorithm>
#include <utility>

namespace gradwire {
namespace {

using Clock = GradientWatch::Clock;

double milliseconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

}  // namespace

StepMeter::StepMeter(Group own)
    : own_(std::move(own)), sent_before_step_(own_.bytes_sent()) {}

void StepMeter::follow(Group other) {
  sent_on_former_ = sent() - own_.bytes_sent();
  other_ = std::move(other);
  other_before_ = other_ ? other_.bytes_sent() : Bytes();
}

Bytes StepMeter::sent() const {
  Bytes total = own_.bytes_sent() + sent_on_former_;
  if (other_) {
    total = total + (other_.bytes_sent() - other_before_);
  }
  return total;
}

void StepMeter::skip() {
  sent_before_step_ = sent();
}

void StepMeter::begin_forward() {
  forward_started_ = Clock::now();
}

void StepMeter::end_forward() {
  forward_ms_ = milliseconds_between(forward_started_, Clock::now());
}

void StepMeter::end_step(
    const GradientWatch::Backward& backward, const std::string& hook) {
  const Bytes now = sent();
  sent_last_step_ = now - std::exchange(sent_before_step_, now);
  auto row = std::ranges::find(sent_by_hook_, hook, &HookBytes::hook);
  if (row == sent_by_hook_.end()) {
    row = sent_by_hook_.insert(row, {.hook = hook});
  }
  ++row->steps;
  row->sent = row->sent + sent_last_step_;
  last_.forward_ms = forward_ms_;
  last_.backward_ms = milliseconds_between(backward.started, backward.ended);
  last_.exposed_ms =
      milliseconds_between(backward.last_gradient, backward.ended);
  if (steps_++ > 0) {
    sum_.forward_ms += last_.forward_ms;
    sum_.backward_ms += last_.backward_ms;
    sum_.exposed_ms += last_.exposed_ms;
  }
}

void StepMeter::report(Stats& stats) const {
  stats.steps = steps_;
  stats.sent = sent();
  stats.sent_last_step = sent_last_step_;
  stats.sent_by_hook = sent_by_hook_;
  stats.last = last_;
  if (steps_ > 1) {
    const auto counted = static_cast<double>(steps_ - 1);
    stats.mean = {
        sum_.forward_ms / counted,
        sum_.backward_ms / counted,
        sum_.exposed_ms / counted};
  }
}

}  // namespace gradwire
