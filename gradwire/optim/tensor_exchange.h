#pragma once

// Private to gradwire: averages of tensors that are no gradients, by a hook.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/agreement.h"
#include "gradwire/comm/group.h"
#include "gradwire/comm/roll_call.h"
#include "gradwire/hook/registry.h"
#include "gradwire/optim/named_tensor.h"

namespace gradwire {

// What ranks compare of tensors: names, types and sizes. Throws Error for a
// list that is empty, has a name twice, or a tensor that is not dense numbers.
std::vector<Fact> facts_of(const NamedTensorList& tensors);

// The hook that averages: "none" is "allreduce". Throws Error for a spec that
// is none, or of a hook that does not average over all ranks.
HookSpec averaging_hook(const std::string& spec);

// Has room for one number per element of its tensors, lets a hook average what
// is put there, and returns when all ranks have the same. Tensors belong to
// fragments, which are averaged by themselves, one at a time, in the same order
// on all ranks; each has a hook of its own, to which every exchange is a step.
// Rooms are of float, or double for double; complex numbers are pairs. No
// allocation after the first exchange. Not thread safe.
class TensorExchange {
 public:
  // `label` is part of the name of its group, which errors have. Throws Error
  // on every rank where ranks do not have the same tensors, or one is not of
  // floats. Collective, and so is every call that says so.
  TensorExchange(
      const Group& group,
      const HookSpec& hook,
      const std::vector<NamedTensorList>& fragments,
      const std::string& label);
  ~TensorExchange();

  // Where rooms are averaged.
  const Group& group() const {
    return group_;
  }
  // The room of tensor i: contiguous, of the tensor's sizes, with a last
  // dimension of two where it is complex.
  const at::Tensor& room(std::size_t fragment, std::size_t i) const {
    return fragments_[fragment].rooms[i];
  }
  // The same elements of a tensor like the i-th one, as real numbers.
  static at::Tensor as_real(const at::Tensor& tensor);

  // Begins to average what is in the rooms, which belong to the exchange until
  // finish(). Collective.
  void start(std::size_t fragment);
  // Waits. The averages are in the rooms then; or throws what went wrong, and
  // what is in the rooms is of no use. Collective.
  void finish();
  // Both, without the hook: exact up to the rounding of a sum.
  void average_exactly(std::size_t fragment);
  // The first rank's rooms, on every rank. Collective.
  void broadcast(std::size_t fragment);

  // What was sent so far.
  Bytes sent() const {
    return group_.bytes_sent();
  }
  // See Hook. Not between start() and finish().
  HookState state() const;
  void check(const HookState& state) const;
  void load(const HookState& state);

 private:
  struct Fragment {
    std::unique_ptr<Hook> hook;
    std::vector<at::Tensor> rooms;
    std::vector<Bucket> buckets = {};
    Parameters parameters = {};
    // Exchanges so far.
    std::int64_t steps = 0;
  };

  void add_fragment(const HookSpec& hook, const NamedTensorList& tensors);
  static void check_fragment(const Fragment& fragment, const HookState& state);

  Group group_;
  std::unique_ptr<RollCall> roll_call_;
  std::vector<Fragment> fragments_;

  std::optional<std::size_t> under_way_;
  Step step_;
  std::vector<Future> results_;
};

}  // namespace gradwire
