// Shows that the operations of codecs allocate nothing. An executable of its
// own, for it replaces operator new.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/codec/inputs.h"
#include "tests/codec/specs.h"

namespace {
std::atomic<long> allocations{0};

void* counted(std::size_t bytes) {
  allocations.fetch_add(1);
  void* memory = std::malloc(bytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes);
}
void* operator new[](std::size_t bytes) {
  return counted(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace gradwire::codec::test {
namespace {

TEST(Allocations, AreCounted) {
  const long before = allocations.load();
  const Floats values(1000);
  EXPECT_EQ(allocations.load(), before + 1);
}

TEST(Allocations, NoneInAnyOperation) {
  const Segments segments = make_segments({3000, 7, 0, 70000});
  const Floats values = make_values(Kind::kNormal, 73007, 1);
  for (const std::string& variant : all_variants()) {
    for (const char* block : {"512", "2048", "tensor"}) {
      const Codec codec = make_codec(with_block(variant, block));
      SCOPED_TRACE(variant);
      Message message(codec.message_bytes(segments));
      Message out(message.size());
      Floats residual(values.size());
      Floats decoded(values.size());
      const std::vector<Codec::ConstBytes> inputs(6, message);

      const long before = allocations.load();
      codec.encode(segments, values.data(), message);
      codec.encode(
          segments,
          values.data(),
          message,
          {residual.data(), residual.data()},
          {.key = 1});
      for (std::size_t n = 1; n <= inputs.size(); ++n) {
        const std::span some(inputs.data(), n);
        codec.decode(segments, some, decoded.data(), 3);
        codec.reduce(segments, some, 3, out, residual.data(), {.key = 2});
      }
      EXPECT_EQ(allocations.load(), before);
    }
  }
}

}  // namespace
}  // namespace gradwire::codec::test
