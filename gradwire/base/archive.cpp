#include "gradwire/base/archive.h"

namespace gradwire {
namespace {

constexpr std::size_t kNumberBytes = sizeof(std::int64_t);

void store(char* to, std::uint64_t value) {
  for (std::size_t i = 0; i < kNumberBytes; ++i) {
    to[i] = static_cast<char>(value >> (8 * i));
  }
}

void check_format(ByteReader& reader, const ArchiveFormat& format) {
  if (reader.raw(format.kind.size()) != format.kind) {
    throw DamagedError(concat("they do not begin with '", format.kind, "'"));
  }
  if (const std::int64_t version = reader.number(); version != format.version) {
    throw DamagedError(
        concat("they are of version ", version, ", expected ", format.version));
  }
}

}  // namespace

ArchiveWriter::ArchiveWriter(const ArchiveFormat& format)
    : bytes_(format.kind) {
  number(format.version);
}

void ArchiveWriter::begin(std::string_view name) {
  end_section();
  text(name);
  length_at_ = bytes_.size();
  number(0);  // replaced by end_section()
}

void ArchiveWriter::end_section() {
  if (length_at_ != 0) {
    store(
        bytes_.data() + length_at_, bytes_.size() - length_at_ - kNumberBytes);
  }
}

void ArchiveWriter::number(std::int64_t value) {
  bytes_.resize(bytes_.size() + kNumberBytes);
  store(
      bytes_.data() + bytes_.size() - kNumberBytes,
      static_cast<std::uint64_t>(value));
}

void ArchiveWriter::text(std::string_view value) {
  number(static_cast<std::int64_t>(value.size()));
  bytes_.append(value);
}

void ArchiveWriter::raw(const void* data, std::size_t size) {
  bytes_.append(static_cast<const char*>(data), size);
}

std::string ArchiveWriter::finish() && {
  end_section();
  number(static_cast<std::int64_t>(fingerprint(bytes_)));
  return std::move(bytes_);
}

ArchiveReader::ArchiveReader(
    std::string_view bytes, const ArchiveFormat& format) {
  ByteReader reader(bytes);
  check_format(reader, format);
  if (reader.left() < kNumberBytes) {
    throw DamagedError("they end before their checksum");
  }
  const std::size_t end = bytes.size() - kNumberBytes;
  if (ByteReader(bytes.substr(end)).number(kNumberBytes) !=
      fingerprint(bytes.substr(0, end))) {
    throw DamagedError("the checksum is another one");
  }
  while (reader.left() > kNumberBytes) {
    const std::string_view name = reader.text();
    if (!sections_.emplace(name, reader.text()).second) {
      throw DamagedError(concat("there are two sections '", name, "'"));
    }
  }
  reader.raw(kNumberBytes);
  reader.end();
}

ByteReader ArchiveReader::section(std::string_view name) const {
  const auto found = sections_.find(name);
  if (found == sections_.end()) {
    throw DamagedError(concat("there is no section '", name, "'"));
  }
  return ByteReader(found->second);
}

}  // namespace gradwire
