#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gradwire/base/error.h"

namespace gradwire {

// Bytes of a peer or a file are not what they should be.
class DamagedError : public Error {
 public:
  explicit DamagedError(const std::string& reason)
      : Error(concat("[gradwire.base] damaged bytes: ", reason)),
        reason_(reason) {}

  // Without the room's tag, for errors that say where the bytes came from.
  const std::string& reason() const {
    return reason_;
  }

 private:
  std::string reason_;
};

// Reads bytes that somebody else wrote, from front to back. Every length is
// checked against the bytes that are left; what does not fit is a DamagedError.
// The bytes must outlive the reader and what it returns.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  // An unsigned number of `size` bytes, at most 8, the least significant first.
  std::uint64_t number(std::size_t size);
  std::int64_t number();
  std::string_view raw(std::uint64_t size);
  // A length of 8 bytes and as many bytes.
  std::string_view text();
  // Up to the end of the line, which is taken too.
  std::string_view line();
  // How many items follow, each of which has at least `least` bytes.
  std::size_t count(std::size_t least);

  std::size_t left() const {
    return left_.size();
  }
  // Throws unless everything was read.
  void end() const;

 private:
  std::string_view left_;
};

}  // namespace gradwire
