#include "gradwire/hook/error_feedback.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "gradwire/base/error.h"

namespace gradwire {

const ErrorFeedback::Residuals& ErrorFeedback::of(const Bucket& bucket) {
  auto found = records_.find(bucket.index());
  if (found != records_.end() && !fits(found->second, bucket)) {
    rebuild();
    found = records_.end();
  }
  if (found == records_.end()) {
    found = records_.emplace(bucket.index(), make_record(bucket)).first;
  }
  found->second.touched = true;
  return found->second.residuals;
}

bool ErrorFeedback::fits(const Record& record, const Bucket& bucket) const {
  if (record.names.size() != bucket.size()) {
    return false;
  }
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    const Parameter& parameter = bucket.parameter(i);
    if (record.names[i] != parameter.name ||
        record.elems[i] != bucket.elems(i)) {
      return false;
    }
  }
  return true;
}

ErrorFeedback::Record ErrorFeedback::make_record(const Bucket& bucket) {
  Record record;
  const std::int64_t elems = bucket.buffer().numel();
  record.residuals = {
      at::zeros({elems}, at::kFloat), at::zeros({elems}, at::kFloat)};
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    const std::string& name = bucket.parameter(i).name;
    const std::int64_t count = bucket.elems(i);
    if (const auto known = homeless_.find(name); known != homeless_.end()) {
      if (known->second.numel() != count) {
        fail(
            "hook",
            "the residual of parameter '",
            name,
            "' has ",
            known->second.numel(),
            " elements, expected ",
            count);
      }
      record.residuals.before.narrow(0, begin, count).copy_(known->second);
      homeless_.erase(known);
    }
    record.names.push_back(name);
    record.elems.push_back(count);
    begin += count;
  }
  return record;
}

void ErrorFeedback::commit() {
  for (auto& [index, record] : records_) {
    if (std::exchange(record.touched, false)) {
      std::swap(record.residuals.before, record.residuals.after);
    }
  }
}

void ErrorFeedback::rollback() {
  for (auto& [index, record] : records_) {
    record.touched = false;
  }
}

void ErrorFeedback::rebuild() {
  for (auto& [index, record] : records_) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < record.names.size(); ++i) {
      homeless_[record.names[i]] =
          record.residuals.before.narrow(0, begin, record.elems[i]);
      begin += record.elems[i];
    }
  }
  records_.clear();
}

void ErrorFeedback::save(HookState& state) {
  rebuild();
  for (const auto& [name, residual] : homeless_) {
    state.residuals[name] = residual.clone();
  }
}

void ErrorFeedback::load(const HookState& state) {
  records_.clear();
  homeless_.clear();
  for (const auto& [name, residual] : state.residuals) {
    homeless_[name] = residual;
  }
}

}  // namespace gradwire
