#pragma once

// Private to gradwire: PowerSGD as a hook (Vogels, Karimireddy, Jaggi 2019).

#include <string>
#include <vector>

#include "gradwire/hook/hook.h"
#include "gradwire/hook/low_rank.h"

namespace gradwire {

// The options as the registry declares them, and as they were given. Throws
// Error for those that exclude each other.
std::vector<Option> powersgd_options(const std::string& hook);
PowerSgdOptions to_powersgd_options(
    const std::string& hook, const Options& options);

// The registry row of the hook that takes these for matrices.
HookInfo powersgd_info(
    const std::string& name,
    const std::string& summary,
    LowRank::Matrices matrices);

}  // namespace gradwire
