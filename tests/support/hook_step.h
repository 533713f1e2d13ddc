#pragma once

#include "gradwire/hook/hook.h"

namespace gradwire::test {

// A step of a hook while it lives, as what drives hooks makes one.
class HookStep {
 public:
  explicit HookStep(Hook& hook) : hook_(hook) {
    hook_.begin_step(step_);
  }
  ~HookStep() {
    step_.outcome = Step::Outcome::kApplied;
    hook_.end_step(step_);
  }
  HookStep(const HookStep&) = delete;

 private:
  Hook& hook_;
  Step step_;
};

}  // namespace gradwire::test
