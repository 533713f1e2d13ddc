#pragma once

// Private to gradwire: hooks that are a codec and the compressed all-reduce.

#include "gradwire/codec/codec.h"
#include "gradwire/hook/hook.h"

namespace gradwire {

// The registry row of the hook around a codec: the codec's options and `ef`,
// `min_elems` and `sparse`. Around a codec of floats another hook may stand in
// parentheses, which then gets gradients of that type.
HookInfo codec_hook(const codec::CodecInfo& codec);

}  // namespace gradwire
