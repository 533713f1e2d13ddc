// Feeds the reader of archives with bytes that no writer wrote, also with the
// right beginning and checksum; what a writer wrote comes back.

#include <string>
#include <vector>

#include "fuzz/input.h"
#include "fuzz/require.h"
#include "gradwire/base/archive.h"

namespace gradwire {
namespace {

constexpr ArchiveFormat kFormat{"gw fuzzy", 1};

std::string text_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

// Reads what is there in some order. The last bytes say which.
void read_all(ByteReader reader, Input choices) {
  std::size_t left = reader.left();
  while (left > 0) {
    switch (choices.byte() % 5) {
      case 0:
        reader.number();
        break;
      case 1:
        require(reader.text().size() < left, "a text beyond the end");
        break;
      case 2:
        require(reader.count(3) <= left / 3, "more items than bytes");
        break;
      case 3:
        reader.raw(1 + choices.byte());
        break;
      default:
        reader.line();
        break;
    }
    require(reader.left() < left, "nothing was read");
    left = reader.left();
  }
  reader.end();
}

void check_reading(const std::string& bytes, const Input& choices) {
  try {
    const ArchiveReader archive(bytes, kFormat);
    for (const char* name : {"", "a", "b"}) {
      read_all(archive.section(name), choices);
    }
  } catch (const DamagedError&) {
  }
}

// As if the fuzzer knew how to write a header and a checksum.
std::string dressed(const std::string& sections) {
  ArchiveWriter header(kFormat);
  std::string bytes = std::move(header).finish();
  bytes.resize(bytes.size() - sizeof(std::int64_t));
  bytes += sections;
  const std::uint64_t sum = fingerprint(bytes);
  for (std::size_t i = 0; i < sizeof sum; ++i) {
    bytes += static_cast<char>(sum >> (8 * i));
  }
  return bytes;
}

void check_writing(Input input) {
  const std::string a = text_of(input.bytes(input.byte()));
  const std::string b = text_of(input.bytes(input.byte()));
  ArchiveWriter out(kFormat);
  out.begin("a");
  out.text(a);
  out.number(input.number());
  out.begin("b");
  out.raw(b.data(), b.size());
  const std::string bytes = std::move(out).finish();
  const ArchiveReader archive(bytes, kFormat);
  require(archive.section("a").text() == a, "another text came back");
  require(archive.section("b").raw(b.size()) == b, "other bytes came back");
}

}  // namespace
}  // namespace gradwire

extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const Input choices(data, size);
  gradwire::check_reading(bytes, choices);
  gradwire::check_reading(gradwire::dressed(bytes), choices);
  gradwire::check_writing(choices);
  return 0;
}
