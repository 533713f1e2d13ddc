#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>

#include "gradwire/rpc/value.h"

namespace gradwire::rpc {

namespace detail {

// A reply with its type forgotten.
class RawReply {
 public:
  struct Call {
    std::string function;
    std::string worker;
    std::string caller;
    std::chrono::milliseconds timeout;
  };

  RawReply(c10::intrusive_ptr<c10::ivalue::Future> future, Call call);

  bool done() const;
  // Waits for the result, or throws what went wrong. To be called once: under a
  // context it adds the response to the graph.
  c10::IValue read() const;
  // Keeps an object alive until the answer has come.
  void keep_until_done(std::shared_ptr<const void> kept) const;

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  Call call_;
};

}  // namespace detail

// The result of a call, later. Every wait ends: the call fails by itself when
// its time is up. A value: copies are the same reply. Thread safe. When a
// result contains handles, wait for it within a lease: until then nothing
// renews their holds.
template <class R>
class Reply {
 public:
  explicit Reply(detail::RawReply raw) : raw_(std::move(raw)) {}

  bool done() const {
    return raw_.done();
  }
  // The result, or throws what went wrong.
  R wait() const {
    const std::lock_guard lock(result_->mutex);
    if constexpr (std::is_void_v<R>) {
      if (!result_->value) {
        Wire<R>::unpack(raw_.read());
        result_->value = true;
      }
    } else {
      if (!result_->value) {
        result_->value.emplace(Wire<R>::unpack(raw_.read()));
      }
      return *result_->value;
    }
  }
  const detail::RawReply& raw() const {
    return raw_;
  }

 private:
  // Read once, so that a handle in it remains one handle however often wait()
  // is called.
  struct Result {
    std::mutex mutex;
    std::optional<std::conditional_t<std::is_void_v<R>, bool, R>> value;
  };

  detail::RawReply raw_;
  std::shared_ptr<Result> result_ = std::make_shared<Result>();
};

}  // namespace gradwire::rpc
