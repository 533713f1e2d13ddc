#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gradwire/hook/hook.h"
#include "gradwire/hook/registry.h"

namespace gradwire {

// What makes a hook around another one out of more than a spec can say: a hook
// for one DDP, when its group is known.
class HookAround {
 public:
  virtual ~HookAround() = default;

  // Of the hook, around one of this text. Ranks compare it.
  virtual std::string text(const std::string& inner) const = 0;
  // Throws Error where the hook cannot serve a DDP of these parameters.
  virtual void check(const Parameters& parameters) const = 0;
  // `text`: the whole one. Collective.
  virtual std::shared_ptr<Hook> make(
      std::shared_ptr<Hook> inner,
      const Group& group,
      const std::string& text) const = 0;
};

// A HookChoice with every check made, once. A value.
class CheckedHook {
 public:
  explicit CheckedHook(HookSpec spec);
  // `shareable`: several DDPs may have this object.
  CheckedHook(std::shared_ptr<Hook> hook, bool shareable);
  CheckedHook(std::shared_ptr<const HookAround> around, CheckedHook inner);

  // The canonical spec, "none", for an object "custom" with the spec that it
  // was made of, else with its type, or what a HookAround makes of one of
  // these. Ranks compare it.
  const std::string& text() const {
    return text_;
  }
  // It was named, by a spec.
  bool has_spec() const {
    return spec_.has_value();
  }
  bool is_none() const {
    return spec_ && spec_->is_none();
  }
  bool is_plain_average() const {
    return spec_ && spec_->is_plain_average();
  }
  bool stays_local() const {
    return around_ ? inner_->stays_local() : spec_ && spec_->stays_local();
  }
  // Throws Error for an object that serves another one than `user` (null: none
  // yet): what it remembers belongs to one DDP.
  void check_free(const void* user) const;
  // Throws Error for a hook that cannot serve a DDP of these parameters.
  void check_parameters(const Parameters& parameters) const;
  // The object, from now on `user`'s, or a new hook; for "none" the allreduce
  // hook.
  std::shared_ptr<Hook> make(
      const Group& group, const std::shared_ptr<const void>& user) const;

 private:
  std::string text_;
  // One of the three.
  std::optional<HookSpec> spec_;
  std::shared_ptr<Hook> hook_;
  std::shared_ptr<const HookAround> around_;
  bool shareable_ = false;
  std::shared_ptr<const CheckedHook> inner_;
};

// What a user may write where a hook is wanted: a spec string ("int8",
// "powersgd:rank=4", "none"), a Hook object, or a lambda
// `[group](gradwire::Bucket& bucket) { return group.all_reduce(...); }`, or
// something around one of these, such as optimizer_overlap("int8", optimizer).
// An object serves one DDP, a lambda any number.
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
      : spec_(),
        hook_(std::make_shared<Lambda<F>>(std::move(reduce))),
        shareable_(true) {}
  HookChoice(std::shared_ptr<const HookAround> around, HookChoice inner)
      : spec_(),
        around_(std::move(around)),
        inner_(std::make_shared<const HookChoice>(std::move(inner))) {}

  // Throws Error for a bad spec or a null object.
  CheckedHook check() const;

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
  bool shareable_ = false;
  std::shared_ptr<const HookAround> around_;
  std::shared_ptr<const HookChoice> inner_;
};

}  // namespace gradwire
