#include "gradwire/optim/zero_records.h"

#include "gradwire/base/error.h"

namespace gradwire {

void ZeroRecords::check_model(
    const ZeroRecord& record, const std::string& where) const {
  for (const auto& [name, description] : expected_.parameters) {
    const auto found = record.parameters.find(name);
    const std::string theirs =
        found == record.parameters.end() ? "none" : found->second;
    if (theirs != description) {
      fail(
          "optim",
          where,
          " is of another model: parameter '",
          name,
          "' has ",
          theirs,
          " elements there, expected ",
          description);
    }
  }
  if (record.parameters.size() != expected_.parameters.size()) {
    fail(
        "optim",
        where,
        " is of another model: it has ",
        record.parameters.size(),
        " parameters, expected ",
        expected_.parameters.size());
  }
}

void ZeroRecords::add(ZeroRecord record, const std::string& where) {
  if (record.optimizer != expected_.optimizer) {
    fail(
        "optim",
        where,
        " is the state of ",
        record.optimizer,
        ", expected that of ",
        expected_.optimizer);
  }
  check_model(record, where);
  const auto rank = static_cast<std::int64_t>(records_.size());
  if (record.rank != rank) {
    fail("optim", where, " is of rank ", record.rank, ", expected ", rank);
  }
  if (!records_.empty() && record.save != first().save) {
    fail(
        "optim",
        where,
        " was not saved together with that of rank 0: saving was broken off");
  }
  records_.push_back(std::move(record));
}

ParameterState ZeroRecords::find(
    const std::string& name, std::int64_t first, std::int64_t elems) const {
  std::vector<const ZeroPiece*> pieces;
  for (const ZeroRecord& record : records_) {
    if (const auto found = record.pieces.find(name);
        found != record.pieces.end()) {
      pieces.push_back(&found->second);
    }
  }
  return assemble_pieces(name, pieces, first, elems);
}

}  // namespace gradwire
