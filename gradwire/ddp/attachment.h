#pragma once

// Private to gradwire: hooks on DDPs that others have made.

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/ddp/stats.h"
#include "gradwire/hook/bucket.h"
#include "gradwire/hook/choice.h"
#include "gradwire/hook/hook_state.h"

namespace c10d {
class ProcessGroup;
class Reducer;
}  // namespace c10d

namespace gradwire {

// A DDP of Torch's, as much of it as a hook needs.
struct ForeignDdp {
  std::shared_ptr<c10d::Reducer> reducer;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  // Of the module, in its order, each tensor once. Those that the Reducer does
  // not have are left out.
  std::vector<Parameter> parameters;
};

// A hook on the Reducer of a ForeignDdp. All calls but stats() and
// is_registered() are collective. What a `find` throws on one rank is an Error
// on all of them. Not thread safe: one thread trains.
class Attachment {
 public:
  using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
  using FindHook = std::function<HookChoice()>;

  // `hook_group`: where the hook communicates, null: among the DDP's ranks.
  Attachment(
      const ForeignDdp& ddp,
      const FindHook& find_hook,
      const ProcessGroupPtr& hook_group);
  ~Attachment();
  Attachment(const Attachment&) = delete;

  // Between two iterations.
  void set_hook(const FindHook& find_hook, const ProcessGroupPtr& hook_group);

  // The Reducer has a hook of ours, and so takes no other one.
  bool is_registered() const;

  // Times: a backward is measured from its first bucket, and what is exposed
  // from its last one. Steps without a hook are counted, not timed.
  Stats stats() const;

  void save_hook_state(const std::string& folder);
  void load_hook_state(const std::string& folder, const LoadHookState& options);
  HookRecord take_hook_state();
  void give_hook_state(const std::function<HookRecord()>& find_record);

  // Ends the hook and its threads. A backward that comes later fails.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire
