#include "gradwire/ddp/step_recorder.h"

#include <algorithm>
#include <utility>

namespace gradwire {

StepRecorder::StepRecorder(Group own)
    : own_(std::move(own)), sent_before_step_(own_.bytes_sent()) {}

void StepRecorder::follow(Group other) {
  sent_on_former_ = sent() - own_.bytes_sent();
  other_ = std::move(other);
  other_before_ = other_ ? other_.bytes_sent() : Bytes();
}

Bytes StepRecorder::sent() const {
  Bytes total = own_.bytes_sent() + sent_on_former_;
  if (other_) {
    total = total + (other_.bytes_sent() - other_before_);
  }
  return total;
}

void StepRecorder::skip() {
  sent_before_step_ = sent();
}

void StepRecorder::begin(Step::Time forward_began) {
  buckets_.clear();
  step_ = {.number = next_number_, .forward_began = forward_began};
  if (forward_began != Step::Time()) {
    step_.forward_ended = Step::Clock::now();
  }
}

std::shared_ptr<BucketRecord> StepRecorder::add_bucket() {
  auto bucket = std::make_shared<BucketRecord>();
  bucket->ready = Step::Clock::now();
  buckets_.push_back(bucket);
  return bucket;
}

bool StepRecorder::all_reduced() const {
  return std::ranges::all_of(buckets_, [](const auto& bucket) {
    return bucket->result->completed() && !bucket->result->hasError();
  });
}

void StepRecorder::wait_for_all() const {
  for (const auto& bucket : buckets_) {
    bucket->result->wait();
  }
}

Step StepRecorder::end(const Step& watched) {
  Step step = step_;
  step.backward_began = watched.backward_began;
  step.last_gradient = watched.last_gradient;
  step.ended = watched.ended;
  Step::Time last_reduced;
  for (const auto& bucket : buckets_) {
    step.buckets.push_back(
        {bucket->ready, bucket->reduced, bucket->sent->read()});
    last_reduced = std::max(last_reduced, step.buckets.back().reduced);
  }
  if (step.ended == Step::Time() && !buckets_.empty()) {
    step.last_gradient = step.buckets.back().ready;
    step.ended = last_reduced;
  }
  const Bytes now = sent();
  step.sent = now - std::exchange(sent_before_step_, now);
  return step;
}

void StepRecorder::count(Step step, const std::string& hook) {
  if (step.outcome == Step::Outcome::kFailed) {
    ++failed_;
    return;
  }
  ++next_number_;
  not_finite_ += step.outcome == Step::Outcome::kNotFinite;
  auto row = std::ranges::find(sent_by_hook_, hook, &HookBytes::hook);
  if (row == sent_by_hook_.end()) {
    row = sent_by_hook_.insert(row, {.hook = hook});
  }
  ++row->steps;
  row->sent = row->sent + step.sent;
  if (steps_++ > 0) {
    const StepTimes times = times_of(step);
    sum_.forward_ms += times.forward_ms;
    sum_.backward_ms += times.backward_ms;
    sum_.communication_ms += times.communication_ms;
    sum_.exposed_ms += times.exposed_ms;
  }
  last_ = std::move(step);
}

void StepRecorder::count_of_others(const Step& step) {
  next_number_ += step.outcome != Step::Outcome::kFailed;
  skip();
}

void StepRecorder::report(Stats& stats) const {
  stats.steps = steps_;
  stats.not_finite_steps = not_finite_;
  stats.failed_steps = failed_;
  stats.sent = sent();
  stats.sent_by_hook = sent_by_hook_;
  stats.last = last_;
  if (steps_ > 1) {
    const auto counted = static_cast<double>(steps_ - 1);
    stats.mean = {
        sum_.forward_ms / counted,
        sum_.backward_ms / counted,
        sum_.communication_ms / counted,
        sum_.exposed_ms / counted};
  }
}

}  // namespace gradwire
