#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gradwire/comm/group.h"

namespace gradwire {

// One thing all ranks must see alike, such as {"hook", "int8:block=512"}.
struct Fact {
  std::string name;
  std::string value;
};

// Compares the facts of all ranks through the store, without a collective, so
// that ranks which would not understand each other say so instead of hanging.
// Collective. On a difference every rank throws the same Error, which names
// the first rank that differs from rank 0 and both values; a rank that does
// not come within the group's timeout is named in a CommError.
void agree(
    const Group& group,
    const std::string& subject,
    const std::vector<Fact>& facts);

// The same for facts that take work to find, which may throw on this rank
// alone. What it throws is part of what ranks compare, so that the others do
// not wait for a rank that has given up; afterwards it is thrown on.
void agree_checked(
    const Group& group,
    const std::string& subject,
    const std::function<std::vector<Fact>()>& find_facts);

// Rank 0's text, on every rank, through the store. Collective. A rank 0 that
// does not come within the group's timeout is named in a CommError.
std::string share(
    const Group& group, const std::string& subject, const std::string& text);

}  // namespace gradwire
