#pragma once

// Private to gradwire: what compression has lost so far and still has to send.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "gradwire/hook/bucket.h"
#include "gradwire/hook/hook.h"

namespace gradwire {

// Residuals belong to parameters, by name: they survive another bucket layout
// and a restart. In memory they lie like the buckets, so that one pass over a
// bucket is one pass over its residuals.
//
// A step reads the residuals of the step before and writes the next ones beside
// them. They replace the old ones with commit(); after rollback() the step has
// never been. Not thread safe.
class ErrorFeedback {
 public:
  struct Residuals {
    // Flat, fp32, an element for every one of the bucket.
    at::Tensor before;
    at::Tensor after;
  };

  // Throws Error when a parameter has another size than it had.
  const Residuals& of(const Bucket& bucket);

  void commit();
  void rollback();
  // Buckets will be others from now on.
  void rebuild();

  void save(HookState& state);
  void load(const HookState& state);

 private:
  struct Record {
    std::vector<std::string> names;
    std::vector<std::int64_t> elems;
    Residuals residuals;
    // Written in this step.
    bool touched = false;
  };

  bool fits(const Record& record, const Bucket& bucket) const;
  Record make_record(const Bucket& bucket);

  // By bucket index.
  std::map<std::size_t, Record> records_;
  // Of parameters that no record has, by name.
  std::map<std::string, at::Tensor> homeless_;
};

}  // namespace gradwire
