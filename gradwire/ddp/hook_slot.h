#pragma once

// Private to gradwire: the hook of one Reducer and what belongs to it.

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/ddp/adapter.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/ddp/stats.h"
#include "gradwire/hook/choice.h"

namespace c10d {
class Reducer;
}

namespace gradwire {

// Which hook turns the buckets of a Reducer into averages, and where its state
// comes from and goes to. Not thread safe.
class HookSlot {
 public:
  // `parameters` are the Reducer's, in its order. Ranks agree on `parent` and
  // hooks connect over `own`.
  HookSlot(
      std::shared_ptr<c10d::Reducer> reducer,
      std::vector<std::shared_ptr<const Parameter>> parameters,
      Group parent,
      Group own);

  // Between two iterations. The Reducer averages by itself until a hook comes
  // that does something else, or one on another group. Afterwards it never does
  // again, and "none" is the allreduce hook. Collective.
  void install(const HookChoice& choice, const Group& group);

  // Null while the Reducer averages by itself.
  HookAdapter* adapter() const {
    return adapter_.get();
  }
  const std::string& text() const {
    return text_;
  }
  // The hook leaves every rank its own gradients.
  bool is_local() const {
    return is_local_;
  }
  void layout_changed();

  // A bucket of the last backward could not be reduced.
  bool failed() const;
  // Throws CommError when it was for a collective: a peer may be gone, so this
  // comes before anything is agreed on.
  void check_group() const;
  // A backward whose hook failed leaves collectives under way. It can be
  // forgotten if it failed in the same place on every rank; otherwise some rank
  // has left out a collective that others wait for, and nothing that is sent
  // from now on would find its partner: then this throws Error, now and ever
  // after. Collective.
  void settle();
  // The same for a Reducer that is in the middle of things.
  void recover();

  // Collective: see hook_state.h. `check` may throw first.
  void save(const std::string& folder, const std::function<void()>& check);
  void load(
      const std::string& folder,
      const LoadHookState& options,
      const std::function<void()>& check);
  // The same without files: this rank's part, and its return. Collective.
  HookRecord take(const std::function<void()>& check);
  void give(const HookRecord& record, const std::function<void()>& check);

  // Buckets, and what hooks say of parameters. `stepped`: a step was made.
  void report(Stats& stats, bool stepped) const;

 private:
  SavedHook saved() const;
  void restore(const SavedHook& saved);
  BucketLayout bucket_layout() const;
  void restore_buckets(const BucketLayout& layout);
  HookOwner owner() const;

  std::shared_ptr<c10d::Reducer> reducer_;
  std::vector<std::shared_ptr<const Parameter>> parameters_;
  Group parent_;
  Group own_;
  std::unique_ptr<HookAdapter> adapter_;
  std::string text_ = "none";
  bool is_local_ = false;
  // Why no backward can follow the one that failed, if so.
  std::exception_ptr end_;
};

}  // namespace gradwire
