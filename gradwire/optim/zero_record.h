#pragma once

// Private to gradwire: one rank's part of a ZeroRedundancyOptimizer's state.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gradwire/optim/optimizer_state.h"
#include "gradwire/plan/shards.h"

namespace gradwire {

// The state of consecutive elements of a parameter, as ZeroParameter keeps it.
struct ZeroPiece {
  std::int64_t first = 0;
  std::int64_t elems = 0;
  ParameterState state;
};

struct ZeroRecord {
  // Drawn anew for every save, the same in the records of all ranks.
  std::int64_t save = 0;
  std::string optimizer;
  std::int64_t world = 0;
  std::int64_t rank = 0;
  // All parameters: how many elements of which type they have.
  std::map<std::string, std::string> parameters;
  // Of this rank, by parameter.
  std::map<std::string, ZeroPiece> pieces;
};

// A record as it lies in a file, and back. The bytes may come from anywhere:
// what is damaged or no such state is an Error that names `where`, and no byte
// is taken for code.
std::string encode_zero_record(const ZeroRecord& record);
ZeroRecord decode_zero_record(
    const std::string& bytes, const std::string& where);

// The state of `elems` elements from `first` on, out of pieces that may be cut
// otherwise. Throws Error, naming the parameter, where some elements are
// missing or pieces do not go together.
ParameterState assemble_pieces(
    const std::string& name,
    const std::vector<const ZeroPiece*>& pieces,
    std::int64_t first,
    std::int64_t elems);

}  // namespace gradwire
