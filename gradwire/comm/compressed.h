#pragma once

#include <string>

#include "gradwire/comm/group.h"

namespace gradwire {

enum class Reduction { kSum, kAverage };

// All-reduce with compressed messages, in place: about 2(W-1)/W times the
// encoded size is sent, whatever the number of ranks, and all ranks end with
// the same bits. `codec` as in "int8", "int8:block=256,rounding=stochastic",
// "fp16"; see docs/codecs.md. Sums are taken in fp32, in rank order.
//
// The tensor is dense in memory, on the CPU, of float, double, half or
// bfloat16. A group of one does nothing. Collective; the first call on a group
// connects. It has connections of its own, so it may be mixed with other
// collectives in any order as long as all ranks agree on the order of these
// calls.
Future compressed_all_reduce(
    const Group& group,
    at::Tensor tensor,
    const std::string& codec,
    Reduction reduction = Reduction::kSum);

}  // namespace gradwire
