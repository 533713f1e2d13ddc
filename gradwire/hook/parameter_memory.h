#pragma once

// Private to gradwire: what a hook keeps of parameters from step to step.

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

// Numbers that belong to parameters, by name: they survive another bucket
// layout and a restart. In memory they lie bucket by bucket, in the order that
// a hook works in, so that one pass over a bucket is one pass over them.
//
// A step reads what the step before has left and writes what it leaves beside
// it. That takes its place with commit(); after rollback() the step has never
// been. Not thread safe.
class ParameterMemory {
 public:
  struct Entry {
    // Must outlive the call it is given to.
    std::string_view name;
    std::int64_t elems = 0;
  };
  using Entries = std::vector<Entry>;
  using ByName = std::map<std::string, at::Tensor>;

  struct Floats {
    // Flat, the entries one after another. Zeros at first.
    at::Tensor before;
    at::Tensor after;
  };

  // `what` it is, for errors: "residual". `numbers`: their type, and where they
  // are.
  ParameterMemory(std::string what, const at::TensorOptions& numbers)
      : what_(std::move(what)), numbers_(numbers) {}

  // For a bucket with these entries. Throws Error when a parameter has another
  // size than it had.
  const Floats& of(std::size_t bucket, const Entries& entries);

  // What is kept of a parameter of so many elements that no bucket has,
  // undefined if nothing: it is paid in this step, and forgotten with commit().
  at::Tensor pay(const std::string& name, std::int64_t elems);

  void commit();
  void rollback();
  // Buckets will be others from now on.
  void rebuild();
  // Forgets what belongs to no bucket.
  void forget_unplaced();

  // In fp32, whatever the type.
  ByName save() const;
  void load(const ByName& state);
  // Throws Error for what save() would not have returned.
  void check(const ByName& state) const;
  // Throws Error when something in the state has another size than its entry.
  void check_sizes(const ByName& state, const Entries& entries) const;

 private:
  struct Record {
    std::vector<std::string> names;
    std::vector<std::int64_t> elems;
    Floats floats;
    // Written in this step.
    bool touched = false;
  };

  static bool fits(const Record& record, const Entries& entries);
  static ByName split(const Record& record);
  Record make_record(const Entries& entries);

  std::string what_;
  at::TensorOptions numbers_;
  // By bucket index.
  std::map<std::size_t, Record> records_;
  // Of parameters that no record has.
  ByName unplaced_;
  // Those of them that are paid in this step.
  std::set<std::string> paid_;
};

}  // namespace gradwire
