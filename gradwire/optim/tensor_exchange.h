#pragma once

// Private to gradwire: averages of tensors that are no gradients, by a hook.

#include <memory>
#include <string>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/hook/registry.h"
#include "gradwire/optim/named_tensor.h"

namespace gradwire {

// Has room for one number per element of its tensors, lets a hook average what
// is put there, and returns when all ranks have the same. Tensors belong to
// fragments, which are averaged by themselves, one at a time, in the same order
// on all ranks. Rooms are of float, or double for double; complex numbers are
// pairs. No allocation after the first exchange. Not thread safe.
class TensorExchange {
 public:
  // `label`: says in errors what is averaged. Collective, and so is every call
  // that says so.
  TensorExchange(
      const Group& group,
      const HookSpec& hook,
      const std::vector<NamedTensorList>& fragments,
      const std::string& label);
  ~TensorExchange();

  std::size_t fragments() const {
    return fragments_.size();
  }
  std::size_t size(std::size_t fragment) const {
    return fragments_[fragment].rooms.size();
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
  // Between start() and finish().
  bool is_under_way() const {
    return under_way_.has_value();
  }
  std::size_t fragment_under_way() const {
    return *under_way_;
  }
  // Both, without the hook: exact up to the rounding of a sum.
  void average_exactly(std::size_t fragment);

  // What was sent so far.
  Bytes sent() const {
    return group_.bytes_sent();
  }
  // See Hook. Not while an exchange is under way.
  void save(HookState& state) const;
  void check(const HookState& state) const;
  void load(const HookState& state);

 private:
  struct Fragment {
    std::vector<at::Tensor> rooms;
    std::vector<Bucket> buckets;
  };

  void add_fragment(const NamedTensorList& tensors);

  std::string label_;
  Group group_;
  std::unique_ptr<Hook> hook_;
  std::vector<Fragment> fragments_;
  Parameters parameters_;
  std::size_t buckets_ = 0;
  std::int64_t exchanges_ = 0;

  std::optional<std::size_t> under_way_;
  Step step_;
  std::vector<Future> results_;
};

}  // namespace gradwire
