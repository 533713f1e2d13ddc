#pragma once

// Private to gradwire: what Gloo's algorithms send from one rank, exactly.

#include <cstdint>

namespace gradwire::gloo {

// A ring all-reduce sends every chunk but the own one while reducing and every
// chunk but the left neighbour's while gathering: 2(W-1)/W of the buffer, give
// or take the rounding of chunks to whole elements.
std::int64_t all_reduce_bytes(
    int rank, int world, std::int64_t elems, std::int64_t elem_bytes);

// A binomial tree: inner nodes send the buffer once per child, leaves nothing.
std::int64_t broadcast_bytes(
    int rank, int world, int root, std::int64_t buffer_bytes);

// A ring: the own contribution and W-2 others pass through every rank.
std::int64_t all_gather_bytes(int world, std::int64_t contribution_bytes);

}  // namespace gradwire::gloo
