#pragma once

// Private to gradwire: PowerSGD as a hook (Vogels, Karimireddy, Jaggi 2019).

#include <string>

#include "gradwire/hook/hook.h"
#include "gradwire/hook/low_rank.h"

namespace gradwire {

// The registry row of the hook that takes these for matrices.
HookInfo powersgd_info(
    const std::string& name,
    const std::string& summary,
    LowRank::Matrices matrices);

}  // namespace gradwire
