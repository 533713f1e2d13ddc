#include "gradwire/hook/parameter_memory.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "gradwire/base/error.h"

namespace gradwire {

const ParameterMemory::Floats& ParameterMemory::of(
    std::size_t bucket, const Entries& entries) {
  auto found = records_.find(bucket);
  if (found != records_.end() && !fits(found->second, entries)) {
    // What this step has touched already is not what this bucket looks for.
    found->second.touched = false;
    std::erase_if(records_, [&](const auto& item) {
      if (!item.second.touched) {
        unplaced_.merge(split(item.second));
      }
      return !item.second.touched;
    });
    found = records_.end();
  }
  if (found == records_.end()) {
    found = records_.emplace(bucket, make_record(entries)).first;
  }
  found->second.touched = true;
  return found->second.floats;
}

bool ParameterMemory::fits(const Record& record, const Entries& entries) {
  if (record.names.size() != entries.size()) {
    return false;
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (record.names[i] != entries[i].name ||
        record.elems[i] != entries[i].elems) {
      return false;
    }
  }
  return true;
}

void ParameterMemory::check_sizes(
    const ByName& state, const Entries& entries) const {
  for (const auto& [name, elems] : entries) {
    const auto known = state.find(std::string(name));
    if (known != state.end() && known->second.numel() != elems) {
      fail(
          "hook",
          "the ",
          what_,
          " of parameter '",
          name,
          "' has ",
          known->second.numel(),
          " elements, expected ",
          elems);
    }
  }
}

void ParameterMemory::check(const ByName& state) const {
  for (const auto& [name, floats] : state) {
    if (!floats.defined() || floats.scalar_type() != at::kFloat ||
        floats.device() != numbers_.device() ||
        floats.layout() != at::kStrided) {
      fail(
          "hook",
          "the ",
          what_,
          " of parameter '",
          name,
          "' is no dense tensor of type Float on the ",
          numbers_.device());
    }
  }
}

ParameterMemory::Record ParameterMemory::make_record(const Entries& entries) {
  check_sizes(unplaced_, entries);
  Record record;
  std::int64_t all = 0;
  for (const Entry& entry : entries) {
    all += entry.elems;
  }
  record.floats = {at::zeros({all}, numbers_), at::zeros({all}, numbers_)};
  std::int64_t begin = 0;
  for (const auto& [view, count] : entries) {
    const std::string name(view);
    if (const auto known = unplaced_.find(name); known != unplaced_.end()) {
      record.floats.before.narrow(0, begin, count).copy_(known->second);
      unplaced_.erase(known);
    }
    record.names.push_back(name);
    record.elems.push_back(count);
    begin += count;
  }
  return record;
}

at::Tensor ParameterMemory::pay(const std::string& name, std::int64_t elems) {
  const auto known = unplaced_.find(name);
  if (known == unplaced_.end() || known->second.numel() != elems) {
    return {};
  }
  paid_.insert(name);
  return known->second;
}

void ParameterMemory::commit() {
  for (const std::string& name : std::exchange(paid_, {})) {
    unplaced_.erase(name);
  }
  for (auto& [index, record] : records_) {
    if (std::exchange(record.touched, false)) {
      std::swap(record.floats.before, record.floats.after);
    }
  }
}

void ParameterMemory::rollback() {
  paid_.clear();
  for (auto& [index, record] : records_) {
    record.touched = false;
  }
}

ParameterMemory::ByName ParameterMemory::split(const Record& record) {
  ByName parts;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < record.names.size(); ++i) {
    parts[record.names[i]] =
        record.floats.before.narrow(0, begin, record.elems[i]);
    begin += record.elems[i];
  }
  return parts;
}

void ParameterMemory::rebuild() {
  for (const auto& [index, record] : records_) {
    unplaced_.merge(split(record));
  }
  records_.clear();
}

void ParameterMemory::forget_unplaced() {
  unplaced_.clear();
}

ParameterMemory::ByName ParameterMemory::save() const {
  ByName state;
  const auto add = [&](const ByName& parts) {
    for (const auto& [name, floats] : parts) {
      state[name] =
          floats.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    }
  };
  add(unplaced_);
  for (const auto& [index, record] : records_) {
    add(split(record));
  }
  return state;
}

void ParameterMemory::load(const ByName& state) {
  records_.clear();
  unplaced_.clear();
  for (const auto& [name, floats] : state) {
    unplaced_[name] = floats.reshape(-1);
  }
}

}  // namespace gradwire
