#include "gradwire/hook/powersgd_options.h"

namespace gradwire {

PowerSgdOptions::PowerSgdOptions(const Options& options)
    : rank(options.integer("rank")),
      start(options.integer("start")),
      min_compression_rate(options.number("min_compression_rate")),
      error_feedback(options.flag("ef")),
      warm_start(options.flag("warm_start")),
      epsilon(options.number("epsilon")),
      seed(options.integer("seed")),
      batch(options.flag("batch")) {}

std::vector<Option> powersgd_options() {
  return {
      {.name = "rank",
       .fallback = std::int64_t{1},
       .help = "rank of what is sent of a matrix",
       .least = 1,
       .most = 1024},
      {.name = "start",
       .fallback = std::int64_t{1000},
       .help = "steps that average in full before",
       .least = 0},
      {.name = "min_compression_rate",
       .fallback = 2.0,
       .help = "matrices that would shrink less are sent in full",
       .least = 1e-6},
      {.name = "ef",
       .fallback = true,
       .help = "error feedback: what is lost is sent with the next step"},
      {.name = "warm_start",
       .fallback = true,
       .help = "each step goes on from the subspace of the one before"},
      {.name = "epsilon",
       .fallback = 0.0,
       .help = "added to lengths that are divided by",
       .least = 0},
      {.name = "seed",
       .fallback = std::int64_t{0},
       .help = "of the subspaces at the beginning"},
      {.name = "batch",
       .fallback = true,
       .help = "matrices of one shape in one product"}};
}

}  // namespace gradwire
