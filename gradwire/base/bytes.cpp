#include "gradwire/base/bytes.h"

#include <utility>

namespace gradwire {
namespace {

thread_local std::shared_ptr<ByteMeter> ledger_of_thread;

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

}  // namespace gradwire
