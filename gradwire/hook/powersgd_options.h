#pragma once

#include <cstdint>
#include <string>

namespace gradwire {

// What `powersgd` and `batched_powersgd` can be told, for programs:
//
//   {.hook = PowerSgdOptions{.rank = 4, .start = 100}.spec()}
struct PowerSgdOptions {
  // Columns of P and Q; smaller matrices have fewer.
  std::int64_t rank = 1;
  // Steps that average in full before compression begins. Memory is kept by
  // parameter, so that none are needed for buckets to settle.
  std::int64_t start = 1000;
  // A matrix is compressed if that leaves less than one part in so many.
  double min_compression_rate = 2;
  // What is lost is added to the next step's gradient.
  bool ef = true;
  // Q goes on from the step before, and is not drawn anew.
  bool warm_start = true;
  // Added to the length of a column of P before it is divided by it.
  double epsilon = 0;
  std::int64_t seed = 0;
  // Every so many steps the norms of residuals are measured for stats().
  std::int64_t stats = 100;
  // Matrices of one shape are sent side by side. Not for `batched_powersgd`,
  // where a bucket is one matrix.
  bool batch = true;
  // How many times a step sends P and Q.
  std::int64_t iterations = 1;
  // P and Q in turn, one of them a step: half the messages.
  bool alternate = false;
  // Every so many steps Q is drawn anew; 0: never.
  std::int64_t refresh = 0;
  // Type of the error memory: fp32, bf16 or fp16.
  std::string memory = "fp32";

  // As a spec string, with what is not the default.
  std::string spec(const std::string& hook = "powersgd") const;
};

}  // namespace gradwire
