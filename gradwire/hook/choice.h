#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gradwire/hook/hook.h"

namespace gradwire {

// What a user may write where a hook is wanted: a spec string ("int8",
// "powersgd:rank=4", "none"), a Hook object, or a lambda
// `[group](gradwire::Bucket& bucket) { return group.all_reduce(...); }`.
class HookChoice {
 public:
  HookChoice() = default;
  HookChoice(const char* spec) : spec_(spec) {}
  HookChoice(std::string spec) : spec_(std::move(spec)) {}

  template <std::derived_from<Hook> H>
  HookChoice(std::shared_ptr<H> hook) : spec_(), hook_(std::move(hook)) {}
  template <std::derived_from<Hook> H>
  HookChoice(std::unique_ptr<H> hook) : spec_(), hook_(std::move(hook)) {}
  template <class F>
  requires std::is_invocable_r_v<Future, F&, Bucket&> HookChoice(F reduce)
      : spec_(), hook_(std::make_shared<Lambda<F>>(std::move(reduce))) {}

  // The canonical spec, "none", or "custom <type>" for an object. Ranks compare
  // it. Throws Error for a bad spec or a null object.
  std::string text() const;
  bool is_none() const;
  // "none", or a hook that does the same.
  bool is_plain_average() const;
  // Every rank keeps its own gradients: HookInfo::Result::kLocal, also inside
  // of another hook.
  bool stays_local() const;
  // The hook itself; call text() first. Not for "none".
  std::shared_ptr<Hook> make(const Group& group) const;

 private:
  template <class F>
  struct Lambda : Hook {
    explicit Lambda(F f) : f(std::move(f)) {}
    Future reduce(Bucket& bucket) override {
      return f(bucket);
    }
    F f;
  };

  // Empty when an object was given, even a null one.
  std::string spec_ = "none";
  std::shared_ptr<Hook> hook_;
};

}  // namespace gradwire
