#include "gradwire/base/bytes.h"

#include <algorithm>
#include <utility>

namespace gradwire {
namespace {

thread_local std::shared_ptr<ByteMeter> ledger_of_thread;

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Gloo cuts a ring buffer into one chunk a rank and a chunk into at least two
// segments of at most 1 MiB; a segment is a whole number of elements.
std::int64_t ring_chunk_bytes(
    int world, std::int64_t total_bytes, std::int64_t elem_bytes) {
  constexpr std::int64_t kMostSegmentBytes = 1024 * 1024;
  const std::int64_t most =
      elem_bytes * std::max<std::int64_t>(1, kMostSegmentBytes / elem_bytes);
  const std::int64_t wanted =
      std::max<std::int64_t>(divide_up(total_bytes, most), 2 * world);
  const std::int64_t segments = divide_up(wanted, world) * world;
  const std::int64_t segment_bytes =
      divide_up(divide_up(total_bytes, segments), elem_bytes) * elem_bytes;
  return segment_bytes * (segments / world);
}

}  // namespace

void ByteMeter::add(const Bytes& bytes) {
  count(bytes);
  if (ledger_of_thread && ledger_of_thread.get() != this) {
    ledger_of_thread->count(bytes);
  }
}

void ByteMeter::count(const Bytes& bytes) {
  payload_.fetch_add(bytes.payload, std::memory_order_relaxed);
  metadata_.fetch_add(bytes.metadata, std::memory_order_relaxed);
}

ByteScope::ByteScope(std::shared_ptr<ByteMeter> ledger)
    : before_(std::exchange(ledger_of_thread, std::move(ledger))) {}

ByteScope::~ByteScope() {
  ledger_of_thread = std::move(before_);
}

std::shared_ptr<ByteMeter> ByteScope::current() {
  return ledger_of_thread;
}
std::int64_t all_reduce_bytes(
    int rank, int world, std::int64_t elems, std::int64_t elem_bytes) {
  if (world == 1 || elems == 0) {
    return 0;
  }
  const std::int64_t total = elems * elem_bytes;
  const std::int64_t chunk = ring_chunk_bytes(world, total, elem_bytes);
  const auto length = [&](int index) {
    return std::clamp<std::int64_t>(total - index * chunk, 0, chunk);
  };
  return 2 * total - length(rank) - length((rank + world - 1) % world);
}

std::int64_t broadcast_bytes(
    int rank, int world, int root, std::int64_t buffer_bytes) {
  // Ranks counted from the root: in round i those below 2^i hold the buffer
  // and send it 2^i further on.
  const int distance = (rank - root + world) % world;
  std::int64_t children = 0;
  for (int reach = 1; reach < world; reach *= 2) {
    if (distance < reach && distance + reach < world) {
      ++children;
    }
  }
  return children * buffer_bytes;
}

std::int64_t all_gather_bytes(int world, std::int64_t contribution_bytes) {
  return (world - 1) * contribution_bytes;
}

}  // namespace gradwire
