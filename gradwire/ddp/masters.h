#pragma once

// Private to ddp: parameters in full precision, computed with in a lower one.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "gradwire/hook/bucket.h"

namespace gradwire {

// A module's parameters are masters: what optimizers step and files hold.
// Copies of them in a narrower type take their places inside of a forward, and
// again inside of its backward, because autograd keeps the parameter itself
// where an operation needs it. There the masters are back bucket by bucket, and
// all of them when backward is over, however it ended. So whoever looks at a
// parameter outside of both finds the master. The tensors stay the same objects
// all the time; only their data are exchanged. The same goes for buffers.
//
// Gradients arrive in the master's type: autograd casts what goes into a
// gradient accumulator to the type that the parameter had when that was made.
//
// A forward and its backward may run on several threads, one after another, and
// backward on several at once.
class Masters {
 public:
  struct Tensor {
    at::Tensor tensor;
    at::ScalarType type;
    // What forward writes to the copy goes into the master.
    bool is_buffer = false;
  };

  // Those of float and double among the tensors compute in their type here.
  explicit Masters(const std::vector<Tensor>& tensors);
  Masters(const Masters&) = delete;

  // Around the module's forward: takes the masters' values, and puts the
  // masters back. Once the copies exist nothing of their size is allocated.
  void begin_forward();
  void end_forward();

  // The backward of these computes with the copies.
  void watch_outputs(const std::vector<at::Tensor*>& outputs);

  // All uses of these parameters in backward are over.
  void restore(const Bucket& bucket);

 private:
  struct State;
  // Shared with graphs that may outlive this object.
  std::shared_ptr<State> state_;
};

}  // namespace gradwire
