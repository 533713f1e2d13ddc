#include "apps/gradwire/train/input_file.h"

#include <zlib.h>

#include <algorithm>

#include "gradwire/base/error.h"

namespace gradwire::apps {

// zlib reads plain files as they are.
struct InputFile::Impl {
  gzFile file;
};

InputFile::InputFile(const std::filesystem::path& path)
    : impl_(std::make_unique<Impl>(gzopen(path.c_str(), "rb"))) {
  if (impl_->file == nullptr) {
    fail("data", "'", path.string(), "' cannot be opened");
  }
}

InputFile::~InputFile() {
  gzclose(impl_->file);
}

std::ptrdiff_t InputFile::read(unsigned char* into, std::size_t count) {
  const auto most = std::min<std::size_t>(count, std::size_t{1} << 28);
  return gzread(impl_->file, into, static_cast<unsigned>(most));
}

}  // namespace gradwire::apps
