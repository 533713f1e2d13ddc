#include "gradwire/base/byte_reader.h"

namespace gradwire {

std::string_view ByteReader::raw(std::uint64_t size) {
  if (size > left_.size()) {
    throw DamagedError(
        concat(size, " bytes are announced, but ", left_.size(), " are left"));
  }
  const std::string_view bytes = left_.substr(0, size);
  left_.remove_prefix(size);
  return bytes;
}

std::uint64_t ByteReader::number(std::size_t size) {
  const std::string_view bytes = raw(size);
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

std::int64_t ByteReader::number() {
  return static_cast<std::int64_t>(number(sizeof(std::int64_t)));
}

std::string_view ByteReader::text() {
  return raw(number(sizeof(std::uint64_t)));
}

std::string_view ByteReader::line() {
  const std::size_t end = left_.find('\n');
  if (end == std::string_view::npos) {
    throw DamagedError("a line does not end");
  }
  const std::string_view line = left_.substr(0, end);
  left_.remove_prefix(end + 1);
  return line;
}

std::size_t ByteReader::count(std::size_t least) {
  const std::uint64_t items = number(sizeof(std::uint64_t));
  if (items > left_.size() / least) {
    throw DamagedError(concat(
        items, " items are announced, but ", left_.size(), " bytes are left"));
  }
  return items;
}

void ByteReader::end() const {
  if (!left_.empty()) {
    throw DamagedError(concat(left_.size(), " bytes too many"));
  }
}

}  // namespace gradwire
