#pragma once

namespace gradwire {

// Of this build of the library: "0.1.0".
const char* version();

}  // namespace gradwire
