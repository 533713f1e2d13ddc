#include "gradwire/base/version.h"

namespace gradwire {

const char* version() {
  return GRADWIRE_VERSION;
}

}  // namespace gradwire
