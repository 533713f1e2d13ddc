#pragma once

// Private to gradwire: hooks that give others narrower gradients.

#include <memory>
#include <string>

#include "gradwire/hook/hook.h"

namespace gradwire {

// The inner hook of the context with gradients of the codec's floats.
std::unique_ptr<Hook> cast_for(
    const std::string& codec, const HookContext& context);

}  // namespace gradwire
