#include <fstream>

#include "apps/gradwire/train/input_file.h"
#include "gradwire/base/error.h"

namespace gradwire::apps {

struct InputFile::Impl {
  std::ifstream file;
};

InputFile::InputFile(const std::filesystem::path& path)
    : impl_(std::make_unique<Impl>(std::ifstream(path, std::ios::binary))) {
  if (!impl_->file) {
    fail("data", "'", path.string(), "' cannot be opened");
  }
  const bool gzipped = impl_->file.get() == 0x1f && impl_->file.get() == 0x8b;
  if (gzipped) {
    fail(
        "data",
        "'",
        path.string(),
        "' is gzipped, and this gradwire was built without zlib: unpack it "
        "with gunzip, or install zlib's headers (apt-get install zlib1g-dev) "
        "and build gradwire again");
  }
  impl_->file.clear();
  impl_->file.seekg(0);
}

InputFile::~InputFile() = default;

std::ptrdiff_t InputFile::read(unsigned char* into, std::size_t count) {
  impl_->file.read(
      reinterpret_cast<char*>(into), static_cast<std::streamsize>(count));
  return impl_->file.bad() ? -1 : impl_->file.gcount();
}

}  // namespace gradwire::apps
