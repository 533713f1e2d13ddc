#pragma once

#include <stdexcept>
#include <string>

#include "gradwire/base/text.h"

namespace gradwire {

// A mistake of the caller: bad option, wrong order of calls, ranks that do not
// agree. The text is `[gradwire.room] what is wrong, got X, expected Y`.
// After an Error nothing was lost: correct the call and go on.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A peer is lost or did not answer in time. The group cannot be used again:
// rebuild it (and what stands on it) or end the process.
class CommError : public Error {
 public:
  using Error::Error;
};

// Throws Error with the room's tag; the parts are streamed one after another.
template <class... Parts>
[[noreturn]] void fail(const char* room, const Parts&... parts) {
  throw Error(concat("[gradwire.", room, "] ", parts...));
}

}  // namespace gradwire
