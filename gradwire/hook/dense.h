#pragma once

// Private to gradwire: what hooks that need dense floats say to others.

#include <string>

#include "gradwire/base/options.h"
#include "gradwire/hook/bucket.h"

namespace gradwire {

// `sparse=error|pass`.
Option sparse_option();
bool passes_sparse(const Options& options);

// Throws Error in the name of the hook for gradients that are no floats, and
// for sparse ones unless they pass.
void check_dense_floats(
    const std::string& hook, const Bucket& bucket, bool pass_sparse);

}  // namespace gradwire
