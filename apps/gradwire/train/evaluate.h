#pragma once

#include <cstdint>

#include "apps/gradwire/shared/models.h"
#include "apps/gradwire/train/data.h"
#include "gradwire/comm/group.h"

namespace gradwire::apps {

// Over the test set, of which every rank takes a part. Collective.
double test_accuracy(
    Classifier& model, const Dataset& data, const Group& group);

// Of all parameters, their names included.
std::uint64_t weights_fingerprint(const Classifier& model);

// Collective.
bool same_on_all_ranks(const Group& group, std::uint64_t value);

}  // namespace gradwire::apps
