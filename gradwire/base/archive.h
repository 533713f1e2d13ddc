#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "gradwire/base/byte_reader.h"

// The format of gradwire's own files: 8 characters that say what it is, the
// version, sections with names, and a checksum of all that. Numbers have 8
// bytes, the least significant first.
namespace gradwire {

// What a file is. `kind` has 8 characters.
struct ArchiveFormat {
  std::string_view kind;
  std::int64_t version;
};

class ArchiveWriter {
 public:
  explicit ArchiveWriter(const ArchiveFormat& format);

  // What is written from here on belongs to the section of this name.
  void begin(std::string_view name);
  void number(std::int64_t value);
  // Its length and its bytes.
  void text(std::string_view value);
  void raw(const void* data, std::size_t size);

  std::string finish() &&;

 private:
  void end_section();

  std::string bytes_;
  // Where the section under way has its length; 0 before the first one.
  std::size_t length_at_ = 0;
};

// Reads what an ArchiveWriter wrote, or something else: then it throws a
// DamagedError, and nothing was allocated that is larger than the bytes.
class ArchiveReader {
 public:
  // The bytes must outlive the reader.
  ArchiveReader(std::string_view bytes, const ArchiveFormat& format);

  // Throws for a section that is missing.
  ByteReader section(std::string_view name) const;

 private:
  std::map<std::string_view, std::string_view> sections_;
};

}  // namespace gradwire
