#pragma once

#include <memory>
#include <utility>

#include "gradwire/hook/hook.h"

namespace gradwire {

// A hook around another one. It passes everything on but buckets: a class of
// its own says what becomes of these, and may keep any of them to itself.
class HookWrapper : public Hook {
 public:
  explicit HookWrapper(std::shared_ptr<Hook> inner)
      : inner_(std::move(inner)) {}

  void begin_step(const Step& step) override {
    inner_->begin_step(step);
  }
  void end_step(Step& step) override {
    inner_->end_step(step);
  }
  bool needs_gradients() const override {
    return inner_->needs_gradients();
  }
  void rebuild() override {
    inner_->rebuild();
  }
  void save(HookState& state) override {
    inner_->save(state);
  }
  void load(const HookState& state) override {
    inner_->load(state);
  }
  void check(
      const HookState& state, const Parameters& parameters) const override {
    inner_->check(state, parameters);
  }
  bool take_residuals(const std::map<std::string, at::Tensor>& owed) override {
    return inner_->take_residuals(owed);
  }
  std::vector<ParameterReport> report() const override {
    return inner_->report();
  }

 protected:
  Hook& inner() {
    return *inner_;
  }
  // To be called by the destructor of the last class, if its own threads wait
  // for what is inside.
  void stop_inner() {
    inner_.reset();
  }

 private:
  std::shared_ptr<Hook> inner_;
};

}  // namespace gradwire
