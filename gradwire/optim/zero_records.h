#pragma once

// Private to gradwire: all parts of a ZeroRedundancyOptimizer's state.

#include <string>
#include <vector>

#include "gradwire/optim/zero_record.h"

namespace gradwire {

// The parts of one save, in the order of the ranks that wrote them.
class ZeroRecords {
 public:
  // `expected`: one of the optimizer that the state is for.
  explicit ZeroRecords(const ZeroRecord& expected) : expected_(expected) {}

  // Throws Error, naming `where`, for one that is of something else or of
  // another save than those before.
  void add(ZeroRecord record, const std::string& where);

  const ZeroRecord& first() const {
    return records_.front();
  }
  // See assemble_pieces().
  ParameterState find(
      const std::string& name, std::int64_t first, std::int64_t elems) const;

 private:
  void check_model(const ZeroRecord& record, const std::string& where) const;

  ZeroRecord expected_;
  std::vector<ZeroRecord> records_;
};

}  // namespace gradwire
