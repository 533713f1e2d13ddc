#pragma once

#include <ATen/core/ivalue.h>

#include <exception>
#include <functional>

namespace gradwire {

// A tensor that will be there later. A value: copies share the result. Thread
// safe. An empty Future (default made) holds nothing and may not be waited for.
//
// Every wait ends: a collective fails by itself when its group's timeout has
// passed, and the Future then holds a CommError that names the rank.
class Future {
 public:
  using Raw = c10::intrusive_ptr<c10::ivalue::Future>;

  Future() = default;
  explicit Future(Raw raw);

  // Of a tensor, for whoever will complete it.
  static Raw make_raw();
  static Future ready(at::Tensor value);
  static Future failed(std::exception_ptr error);

  bool valid() const;
  bool done() const;
  // The tensor (undefined for a barrier), or throws what went wrong. Throws
  // Error in a callback on another Future, rather than wait for itself.
  at::Tensor wait() const;
  // What went wrong, null if nothing did. Only after done().
  std::exception_ptr error() const;

  // A future of `step(result)`. The step runs on the thread that completes
  // this future, at once if it is complete; what it throws becomes the error.
  // It must not start or wait for a collective: on most transports that
  // deadlocks.
  Future then(std::function<at::Tensor(const at::Tensor&)> step) const;
  // Calls `done` when this future is complete, however it ended.
  void on_done(std::function<void(const Future&)> done) const;

  // As Torch knows it. Null when empty.
  const Raw& raw() const {
    return raw_;
  }

 private:
  at::Tensor value() const;
  void check_valid() const;

  Raw raw_;
};

}  // namespace gradwire
