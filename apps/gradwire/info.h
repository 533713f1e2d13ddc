#pragma once

namespace gradwire::apps {

// `gradwire info`: versions, backends, processor and launch environment.
int print_info();

}  // namespace gradwire::apps
