#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "gradwire/base/text.h"

namespace gradwire {

// Where something went wrong, as far as it is known. Every layer that hands an
// error on adds what it knows; it is written once, behind the error's text.
struct Place {
  std::optional<int> rank = {};
  std::string group = {};
  std::string hook = {};
  std::optional<std::int64_t> bucket = {};
  std::string phase = {};
  // Who is missing: "rank 2 does not answer".
  std::string peer = {};

  // Adds what is not known yet.
  void add(const Place& more);
};

// "(rank 0, hook int8, bucket 3, phase all-gather; rank 2 does not answer)", or
// "" when nothing is known.
std::string to_string(const Place& place);

// A mistake of the caller: bad option, wrong order of calls, ranks that do not
// agree. The text is `[gradwire.room] what is wrong, got X, expected Y`.
// After an Error nothing was lost: correct the call and go on.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, const Place& place = {});

  // what() without the place, and the place.
  const std::string& message() const {
    return parts_->message;
  }
  const Place& place() const {
    return parts_->place;
  }

 private:
  struct Parts {
    std::string message;
    Place place;
  };
  // Shared, for copying an exception must not throw.
  std::shared_ptr<const Parts> parts_;
};

// A peer is lost or did not answer in time. The group cannot be used again:
// rebuild it (and what stands on it) or end the process.
class CommError : public Error {
 public:
  using Error::Error;
};

// Whether it is a CommError.
bool is_comm_error(const std::exception_ptr& error);

// What was thrown, as a Kind of Error that knows `place` too.
template <class Kind>
std::exception_ptr with_place(
    const std::exception_ptr& error, const Place& place) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    Place all = e.place();
    all.add(place);
    return std::make_exception_ptr(Kind(e.message(), all));
  } catch (const std::exception& e) {
    return std::make_exception_ptr(Kind(e.what(), place));
  } catch (...) {
    return std::make_exception_ptr(
        Kind("[gradwire.base] something unknown was thrown", place));
  }
}

// Throws Error with the room's tag; the parts are streamed one after another.
template <class... Parts>
[[noreturn]] void fail(const char* room, const Parts&... parts) {
  throw Error(concat("[gradwire.", room, "] ", parts...));
}
// The same where it is known where it happened.
template <class... Parts>
[[noreturn]] void fail_at(
    const Place& place, const char* room, const Parts&... parts) {
  throw Error(concat("[gradwire.", room, "] ", parts...), place);
}

}  // namespace gradwire
