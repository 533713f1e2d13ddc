#pragma once

namespace gradwire::apps {

// `gradwire hooks`: the registry as a table, or as JSON.
int list_hooks(bool json);

}  // namespace gradwire::apps
