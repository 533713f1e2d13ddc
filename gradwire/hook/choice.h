#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gradwire/hook/hook.h"
#include "gradwire/hook/registry.h"

namespace gradwire {

// A HookChoice with every check made, once. A value.
class CheckedHook {
 public:
  explicit CheckedHook(HookSpec spec);
  // `shareable`: several DDPs may have this object.
  CheckedHook(std::shared_ptr<Hook> hook, bool shareable);

  // The canonical spec, "none", or "custom <type>" for an object. Ranks compare
  // it.
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
    return spec_ && spec_->stays_local();
  }
  // Throws Error for an object that serves another one than `user` (null: none
  // yet): what it remembers belongs to one DDP.
  void check_free(const void* user) const;
  // The object, from now on `user`'s, or a new hook; for "none" the allreduce
  // hook.
  std::shared_ptr<Hook> make(
      const Group& group, const std::shared_ptr<const void>& user) const;

 private:
  std::string text_;
  // One of the two.
  std::optional<HookSpec> spec_;
  std::shared_ptr<Hook> hook_;
  bool shareable_ = false;
};

// What a user may write where a hook is wanted: a spec string ("int8",
// "powersgd:rank=4", "none"), a Hook object, or a lambda
// `[group](gradwire::Bucket& bucket) { return group.all_reduce(...); }`. An
// object serves one DDP, a lambda any number.
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
};

}  // namespace gradwire
