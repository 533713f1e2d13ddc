#pragma once

// Private to gradwire: hooks that send narrower floats, alone or around others.

#include <c10/core/ScalarType.h>

#include <string>

#include "gradwire/hook/hook.h"

namespace gradwire {

// The row of compressed_hook(), and with another hook in parentheses a wrapper
// that gives that hook gradients of type `narrow`.
HookInfo cast_hook(const std::string& codec, at::ScalarType narrow);

}  // namespace gradwire
