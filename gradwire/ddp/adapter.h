#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/roll_call.h"
#include "gradwire/hook/hook.h"

namespace c10d {
class CommHookInterface;
}

namespace gradwire {

// Makes a c10d::CommHookInterface of a Hook. The Reducer takes one hook for
// life; this one stays and the Hook inside can be exchanged.
//
// Buckets get their index and is_last by counting parameters against the total:
// the Reducer's own flags are wrong in a static graph's first iteration. What a
// hook throws goes into the future and surfaces in backward(), with rank and
// bucket added: a throw in the Reducer's face would leave it unusable.
class HookAdapter {
 public:
  HookAdapter(
      const std::vector<std::shared_ptr<const Parameter>>& parameters,
      int rank,
      std::unique_ptr<RollCall> roll_call);
  ~HookAdapter();

  // The object for Reducer::register_comm_hook. It shares the state of this
  // one and may outlive it.
  std::unique_ptr<c10d::CommHookInterface> make_comm_hook();

  // Only between two iterations.
  void set_hook(std::shared_ptr<Hook> hook, std::string text);
  Hook& hook() const;
  // The next bucket is the first of a backward.
  void begin_backward();
  // What averages are multiplied by, for those over fewer ranks than all.
  void set_scale(double scale);
  // The buckets of the next backward are not those of the last one.
  void layout_changed();
  // The first bucket of the last backward that could not be reduced, if any.
  std::optional<std::int64_t> failed_bucket() const;
  // What the buckets of the last backward have sent so far.
  std::vector<Bytes> sent_by_bucket() const;
  // It was a collective that failed: the group is of no use any more.
  bool lost_group() const;
  // Returns when no bucket of the last backward is under way any more, however
  // it ended.
  void wait_for_all();

 private:
  struct State;
  class CommHook;

  std::shared_ptr<State> state_;
};

}  // namespace gradwire
