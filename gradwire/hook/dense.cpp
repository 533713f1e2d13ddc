#include "gradwire/hook/dense.h"

#include <c10/core/ScalarType.h>

#include "gradwire/base/error.h"

namespace gradwire {

Option sparse_option() {
  return {
      .name = "sparse",
      .fallback = "error",
      .help = "pass: sparse gradients are averaged uncompressed",
      .choices = {"error", "pass"}};
}

bool passes_sparse(const Options& options) {
  return options.word("sparse") == "pass";
}

void check_dense_floats(
    const std::string& hook, const Bucket& bucket, bool pass_sparse) {
  if (bucket.is_sparse() && !pass_sparse) {
    fail(
        "hook",
        "'",
        hook,
        "' cannot compress the sparse gradient of '",
        bucket.parameter(0).name,
        "', expected dense ones; ",
        hook,
        ":sparse=pass sends sparse gradients as they are");
  }
  const auto type = bucket.buffer().scalar_type();
  if (!at::isFloatingType(type)) {
    fail("hook", "'", hook, "' got gradients of ", type, ", expected floats");
  }
}

}  // namespace gradwire
