#include "gradwire/comm/parts.h"

#include <ATen/ops/empty.h>

#include <map>

#include "gradwire/base/error.h"
#include "gradwire/base/placement.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

// What one rank knows of its machine: the number of the machine's first rank in
// the job, its own number there, and how many ranks that machine has.
struct Seat {
  std::int64_t first = 0;
  std::int64_t place = 0;
  std::int64_t places = 0;
};

Seat find_seat(const Group& group, const Environment& environment) {
  const Placement place = detect_placement(environment);
  if (place.launcher == "none" && group.size() > 1) {
    fail(
        "comm",
        "no launcher says which ranks share a machine, expected a number of "
        "ranks instead");
  }
  return {place.rank - place.local_rank, place.local_rank, place.local_world};
}

std::vector<Seat> gather_seats(const Group& group, const Seat& own) {
  constexpr std::int64_t kNumbers = 3;
  at::Tensor mine = at::empty({kNumbers}, at::kLong);
  at::Tensor all = at::empty({kNumbers * group.size()}, at::kLong);
  auto* numbers = mine.data_ptr<std::int64_t>();
  numbers[0] = own.first;
  numbers[1] = own.place;
  numbers[2] = own.places;
  group.all_gather(all, mine).wait();
  std::vector<Seat> seats;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto* each = all.data_ptr<std::int64_t>() + rank * kNumbers;
    seats.push_back({each[0], each[1], each[2]});
  }
  return seats;
}

// Ranks that were dealt out to machines in turn seem to have first ranks that
// are none. A part of the job cannot tell.
void check_neighbours(
    const std::vector<int>& ranks, const std::vector<Seat>& seats) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Seat& seat = seats[static_cast<std::size_t>(ranks[i])];
    const bool whole_job = seat.first + seat.place == ranks[i];
    const auto count = static_cast<std::int64_t>(ranks.size());
    if (whole_job && (seat.place != static_cast<std::int64_t>(i) ||
                      (seat.places > 0 && seat.places != count))) {
      fail(
          "comm",
          "the launcher made rank ",
          ranks[i],
          " number ",
          seat.place,
          " of ",
          seat.places,
          " on its machine, expected neighbours there: give a number of ranks "
          "instead");
    }
  }
}

std::string describe(const Parts& parts) {
  std::string text;
  for (const auto& ranks : parts) {
    text += concat('[', join(ranks), ']');
  }
  return text;
}

}  // namespace

Parts blocks_of(
    const Group& group, std::int64_t size, const std::string& what) {
  agree_checked(group, what, [&] {
    if (size < 1 || group.size() % size != 0) {
      fail(
          "comm",
          what,
          " is ",
          size,
          " for ",
          group.size(),
          " ranks, expected a number that divides them");
    }
    return std::vector<Fact>{{"number of ranks", concat(size)}};
  });
  Parts parts(static_cast<std::size_t>(group.size() / size));
  for (int rank = 0; rank < group.size(); ++rank) {
    parts[static_cast<std::size_t>(rank / size)].push_back(rank);
  }
  return parts;
}

Parts machines_of(const Group& group, const Environment& environment) {
  Seat own;
  agree_checked(group, "the ranks of each machine", [&] {
    own = find_seat(group, environment);
    return std::vector<Fact>{};
  });
  const auto seats = gather_seats(group, own);
  std::map<std::int64_t, std::vector<int>> by_machine;
  for (int rank = 0; rank < group.size(); ++rank) {
    by_machine[seats[static_cast<std::size_t>(rank)].first].push_back(rank);
  }
  Parts parts;
  for (const auto& [first, ranks] : by_machine) {
    check_neighbours(ranks, seats);
    parts.push_back(ranks);
  }
  return parts;
}

Group part_of(const Group& group, const Parts& parts) {
  agree(group, "the parts of a group", {{"ranks", describe(parts)}});
  return parts.size() == 1 ? group : make_part(group, parts);
}

}  // namespace gradwire
