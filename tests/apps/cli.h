#pragma once

#include <string>

namespace gradwire::test {

// The gradwire command under test.
inline const std::string kCli = GRADWIRE_CLI;

}  // namespace gradwire::test
