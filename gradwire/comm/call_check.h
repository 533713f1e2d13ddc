#pragma once

// Private to comm.

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>

#include "gradwire/comm/future.h"
#include "gradwire/comm/group.h"

namespace gradwire {

// Compares what ranks ask for in a collective before they begin it, since
// messages of other sizes than expected cannot be told from each other once
// they are on their way. Used again and again. Not thread safe.
class CallCheck {
 public:
  // Tells all other ranks, in 64 bytes each that count as metadata. Collective.
  void send(const Group& group, const std::string& asked);
  // Waits for what they have told. Null when it is the same on all ranks, else
  // an Error that names the first rank that differs from rank 0, on every rank.
  std::exception_ptr compare();

 private:
  at::Tensor outgoing_;
  at::Tensor incoming_;
  Future pending_;
};

}  // namespace gradwire
