#pragma once

#include <vector>

#include "gradwire/base/env.h"
#include "gradwire/comm/group.h"

namespace gradwire {

// Ranks of a group, part by part: every rank is in exactly one.
using Parts = std::vector<std::vector<int>>;

// Blocks of `size` neighbours. Collective over the group; throws Error on every
// rank, in the name of `what`, where they do not come out even or ranks give
// different sizes.
Parts blocks_of(const Group& group, std::int64_t size, const std::string& what);

// The ranks of every machine, as the launcher placed them. Collective over the
// group. Throws Error on every rank where the launcher of some rank does not
// say it, or ranks of a machine are not neighbours.
Parts machines_of(const Group& group, const Environment& environment);

// The part that this rank is in, numbered by the place in the list. What is
// sent there counts as the group's. Collective over the group; throws Error on
// every rank when ranks give different parts.
Group part_of(const Group& group, const Parts& parts);

}  // namespace gradwire
