#include "apps/gradwire/shared/prefixed.h"

#include <iostream>

namespace gradwire::apps {

void print_prefixed(
    const std::string& who, launch::Stream stream, std::string_view line) {
  auto& out = stream == launch::Stream::kErr ? std::cerr : std::cout;
  out << "[" << who << "] " << line << std::endl;
}

}  // namespace gradwire::apps
