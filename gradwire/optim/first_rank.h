#pragma once

// Private to gradwire: tensors that are not averaged.

#include <string>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/optim/named_tensor.h"

namespace gradwire {

// Sends tensors of any type from the first rank to all, in one message. No
// allocation after it was made. Not thread safe.
class FirstRank {
 public:
  explicit FirstRank(const NamedTensorList& tensors);

  // Collective. Tensors are as they were until take().
  Future start(const Group& group);
  // After the Future is done.
  void take();

 private:
  NamedTensorList tensors_;
  at::Tensor bytes_;
  // Of the bytes, by tensor.
  std::vector<at::Tensor> rooms_;
};

}  // namespace gradwire
