#pragma once

// Private to gradwire: hooks that are a codec and the compressed all-reduce.

#include <string>

#include "gradwire/hook/hook.h"

namespace gradwire {

// The registry row of the hook around the codec of that name: the codec's
// options and `ef`, `min_elems` and `sparse`. `feedback`: whether error
// feedback is on when nobody says.
HookInfo compressed_hook(const std::string& codec, bool feedback);

}  // namespace gradwire
