#pragma once

// Private to gradwire: the one thing between c10d's Reducer and a Hook.

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/ddp/bucket_result.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/ddp/stats.h"
#include "gradwire/ddp/step_recorder.h"
#include "gradwire/hook/choice.h"

namespace c10d {
class GradBucket;
class Reducer;
}  // namespace c10d

namespace gradwire {

// Which hook turns the buckets of a Reducer into averages, where its steps
// begin and end, what became of them, and where the hook's state comes from and
// goes to. A DistributedDataParallel, an Attachment and a BucketHook are fronts
// of it.
//
// The Reducer takes one hook, once; that entry stays and the Hook behind it is
// exchanged. Buckets get their index and is_last by counting parameters: the
// Reducer's own numbers are wrong in a static graph's first iteration. What a
// hook throws goes into the bucket's future and surfaces in backward(), because
// an exception inside of the Reducer makes it unusable.
//
// Not thread safe: the thread that trains calls it, and reduce() runs in the
// backward that this thread waits for.
class HookedReducer : public std::enable_shared_from_this<HookedReducer> {
 public:
  // `parameters` are the Reducer's, in its order. Ranks agree on `parent` and
  // hooks connect over `own`. Without a Reducer somebody hands over buckets by
  // reduce(), and without parameters those are called "0", "1" and so on as
  // they come.
  static std::shared_ptr<HookedReducer> make(
      std::shared_ptr<c10d::Reducer> reducer,
      Parameters parameters,
      Group parent,
      Group own);
  ~HookedReducer();

  // Between two iterations. A Reducer averages by itself until a hook comes
  // that does something else, or one on another group; afterwards it never does
  // again, and "none" is the allreduce hook. What the hook before still owes
  // the new one sends, if it has error feedback. `group`: where the hook
  // communicates, an empty one is `own`. Collective.
  void install(const CheckedHook& choice, const Group& group = {});
  // Ends the hook and its threads. A backward that comes later fails.
  void stop();

  // The canonical spec of the hook.
  const std::string& spec() const {
    return spec_;
  }
  // The Reducer has a hook of ours, and so takes no other one. Until then it
  // averages by itself.
  bool is_registered() const {
    return failures_ != nullptr;
  }

  // A forward has ended whose gradients will be averaged. Where nobody says so,
  // a step begins with the first bucket after the last one.
  void begin_step(Step::Time forward_began);
  // All gradients of the step are averaged. `watched` has the times of
  // gradients.
  void end_step(const Step& watched);
  // This rank only took part in the step of others: it is none of its own.
  void end_step_of_others();
  // What was sent since the last step belongs to none.
  void skip_sent() {
    recorder_.skip();
  }
  // Steps that were averaged.
  std::int64_t steps() const {
    return recorder_.steps();
  }
  // Between the first and the last bucket of a backward.
  bool in_backward() const;
  // One bucket, with the same ones in the same order on all ranks. The future
  // holds a tensor. Throws nothing.
  Future::Raw reduce(c10d::GradBucket& bucket);

  // What happens before a hook gets a bucket, on the thread that brings its
  // last gradient.
  void before_each_bucket(std::function<void(const Bucket&)> action) {
    before_bucket_ = std::move(action);
  }

  // From the next backward on averages are over so many ranks instead of all.
  void average_over(int ranks);

  // A bucket of the last backward could not be reduced.
  bool failed() const;
  // It was a collective that failed: the group is of no use any more.
  bool lost_group() const;
  // Throws CommError when it is: a peer may be gone, so this comes before
  // anything is agreed on.
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
  void give(const std::function<HookRecord()>& find_record);
  // Without buckets, between two iterations. Setting is collective: throws
  // Error on every rank, and nothing has changed, where a state is not of this
  // hook or ranks have others.
  HookState hook_state();
  void set_hook_state(const HookState& state);

  std::vector<ParameterReport> report();
  // Not without a Reducer.
  Stats stats();

 private:
  class Entry;

  HookedReducer(
      std::shared_ptr<c10d::Reducer> reducer,
      Parameters parameters,
      Group parent,
      Group own);

  static void destroy(HookedReducer* reducer);
  void register_entry();
  void hand_over(Hook& to);
  void reset_step(Step::Time forward_began);
  std::exception_ptr begin_step_if_due(const c10d::GradBucket& bucket);
  // Ends the step of the last backward, if that has not happened and it is
  // over.
  void close_if_over();
  void close(const Step& watched, bool counts);
  void note_rebuilt_buckets();
  Future reduce_by_hook(Bucket& bucket);
  Bucket next_bucket(const c10d::GradBucket& bucket);
  const std::shared_ptr<const Parameter>& find(const at::Tensor& tensor);
  bool has_all_parameters() const;

  void rebuild_buckets_if_due(const std::function<void()>& check);
  SavedHook saved();
  void check_state(const HookState& state) const;
  void restore(const SavedHook& saved);
  BucketLayout bucket_layout() const;
  void restore_buckets(const BucketLayout& layout);
  HookOwner owner() const;
  std::vector<Bytes> plain_bytes_by_bucket() const;

  std::shared_ptr<c10d::Reducer> reducer_;
  Parameters parameters_;
  // Parameters are not known before their buckets come.
  bool learns_;
  std::unordered_map<const void*, std::shared_ptr<const Parameter>> by_tensor_;
  Group parent_;
  Group own_;

  std::function<void(const Bucket&)> before_bucket_ = [](const Bucket&) {};
  std::string spec_ = "none";
  std::shared_ptr<Hook> hook_;
  // The hook leaves every rank its own gradients.
  bool stays_local_ = false;
  // What averages are multiplied by.
  double scale_ = 1;
  // The Reducer has not put its buckets into the order of gradients yet, or
  // has.
  bool to_rebuild_ = false;
  bool rebuilt_ = false;
  // The hook has not heard that buckets are others.
  bool layout_changed_ = false;

  StepRecorder recorder_;
  // A step has begun and has not ended; and the hook knows of it.
  bool open_ = false;
  bool told_ = false;
  // Parameters whose buckets have come in this step.
  std::unordered_set<const void*> seen_;

  // From the first hook on.
  std::shared_ptr<BucketFailures> failures_;
  // Why no backward can follow the one that failed, if so.
  std::exception_ptr end_;
};

}  // namespace gradwire
