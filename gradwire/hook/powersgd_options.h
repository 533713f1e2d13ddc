#pragma once

// Private to gradwire: the options of `powersgd` and `batched_powersgd`.

#include <cstdint>
#include <vector>

#include "gradwire/base/options.h"

namespace gradwire {

struct PowerSgdOptions {
  // Columns of P and Q; smaller matrices have fewer.
  std::int64_t rank = 1;
  // Steps that average in full before compression begins.
  std::int64_t start = 1000;
  // A matrix is compressed if that leaves less than one part in so many.
  double min_compression_rate = 2;
  bool error_feedback = true;
  // Q goes on from the step before, and is not drawn anew.
  bool warm_start = true;
  // Added to the length of a column before it is divided by it.
  double epsilon = 0;
  std::int64_t seed = 0;
  // Matrices of one shape in one product.
  bool batch = true;

  explicit PowerSgdOptions(const Options& options);
};

std::vector<Option> powersgd_options();

}  // namespace gradwire
