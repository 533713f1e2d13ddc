#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

namespace gradwire::apps {

// The bytes of a file, unpacked where it is gzipped. Built with zlib
// (input_file.cpp) or without (no_zlib.cpp), where a gzipped file is refused.
class InputFile {
 public:
  // Throws Error when the file cannot be opened or read by this build.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;

  // At most `count` bytes: how many were read, 0 at the end, -1 when the file
  // is damaged.
  std::ptrdiff_t read(unsigned char* into, std::size_t count);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire::apps
