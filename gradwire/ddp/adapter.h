#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
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
  // When the buckets of one backward were handed over and reduced.
  struct Times {
    std::chrono::steady_clock::time_point first_bucket;
    std::chrono::steady_clock::time_point last_bucket;
    std::chrono::steady_clock::time_point reduced;
  };

  HookAdapter(
      const std::vector<std::shared_ptr<const Parameter>>& parameters,
      int rank,
      std::unique_ptr<RollCall> roll_call);
  // For buckets of a model that is not known: parameters are called "0", "1"
  // and so on as they come, and a backward begins with one that comes again.
  // Which bucket is the last it takes from the Reducer: a static graph's first
  // iteration has none, and hooks do not remember what they lost in it.
  HookAdapter(int rank, std::unique_ptr<RollCall> roll_call);
  ~HookAdapter();

  // The object for Reducer::register_comm_hook. It shares the state of this
  // one and may outlive it.
  std::unique_ptr<c10d::CommHookInterface> make_comm_hook();

  // Only between two iterations.
  void set_hook(std::shared_ptr<Hook> hook, std::string text);
  Hook& hook() const;
  // The next bucket is the first of a backward.
  void begin_backward();
  // From now on backwards begin by themselves, with the first bucket after the
  // last one; `on_begin` runs before, on that bucket's thread, and what it
  // throws fails the backward. For a Reducer that others drive.
  void begin_by_itself(std::function<void()> on_begin);
  // Between the first and the last bucket of a backward.
  bool in_backward() const;
  // Of the last backward; nothing until all of it is reduced.
  std::optional<Times> times() const;
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
