#pragma once

#include "gradwire/base/error.h"

namespace gradwire::apps {

// Throws Error that names the flag unless `value` is within the range.
template <class T>
void check_range(const char* name, T value, T least, T most) {
  if (!(value >= least && value <= most)) {
    fail("app", "--", name, " is ", value, ", expected ", least, " to ", most);
  }
}

}  // namespace gradwire::apps
