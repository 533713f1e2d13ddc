#pragma once

// Private to gradwire: what the options of mixed precision ask for.

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "gradwire/comm/agreement.h"
#include "gradwire/ddp/masters.h"
#include "gradwire/ddp/model.h"
#include "gradwire/ddp/options.h"
#include "gradwire/hook/choice.h"

namespace gradwire {

// Throws Error for types that it cannot be. What all ranks must see alike.
std::vector<Fact> inspect_precision(const MixedPrecision& precision);

// The tensors of a module that are computed with in another type. Null where
// there are none.
std::shared_ptr<Masters> make_masters(
    const Model& model, const MixedPrecision& precision);

// The hook whose buckets travel in `type`: the cast of this name instead of
// plain averaging, and around any other hook. Throws Error for a hook that has
// no name. "none" is what it was without a type.
CheckedHook hook_in_type(
    const HookChoice& choice, std::optional<at::ScalarType> type);

}  // namespace gradwire
