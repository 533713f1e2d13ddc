#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace gradwire {

// Bytes one rank handed to the transport. Payload carries gradients,
// parameters or whatever else the caller asked to move; metadata is what a
// collective adds to be understood by its peers (sizes, indices, scales).
// TCP/IP headers and the transport's own framing are not in it.
struct Bytes {
  std::int64_t payload = 0;
  std::int64_t metadata = 0;

  std::int64_t total() const {
    return payload + metadata;
  }
  friend Bytes operator-(const Bytes& a, const Bytes& b) {
    return {a.payload - b.payload, a.metadata - b.metadata};
  }
  friend Bytes operator+(const Bytes& a, const Bytes& b) {
    return {a.payload + b.payload, a.metadata + b.metadata};
  }
  friend bool operator==(const Bytes&, const Bytes&) = default;
};

// A running total. Thread safe: collectives are submitted from several threads.
class ByteMeter {
 public:
  // Adds to the ledger of the calling thread too, see ByteScope.
  void add(const Bytes& bytes);
  Bytes read() const {
    return {
        payload_.load(std::memory_order_relaxed),
        metadata_.load(std::memory_order_relaxed)};
  }

 private:
  void count(const Bytes& bytes);

  std::atomic<std::int64_t> payload_{0};
  std::atomic<std::int64_t> metadata_{0};
};

// While it lives, bytes that the calling thread adds to any meter are added to
// `ledger` as well. This tells bytes apart by bucket. Work that goes on in
// another thread takes ByteScope::current() along. Scopes nest.
class ByteScope {
 public:
  explicit ByteScope(std::shared_ptr<ByteMeter> ledger);
  ~ByteScope();
  ByteScope(const ByteScope&) = delete;

  // Null outside of any scope.
  static std::shared_ptr<ByteMeter> current();

 private:
  std::shared_ptr<ByteMeter> before_;
};

}  // namespace gradwire
