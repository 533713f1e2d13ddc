#include "gradwire/comm/future.h"

#include "gradwire/base/error.h"
#include "gradwire/comm/callback_scope.h"

namespace gradwire {
namespace {

// A callback that held the Future would own the owner of the callback, so it
// makes a new one from what it is called with.
Future as_future(c10::ivalue::Future& completed) {
  return Future(Future::Raw::reclaim_copy(&completed));
}

}  // namespace

Future::Future(Raw raw) : raw_(std::move(raw)) {}

Future::Raw Future::make_raw() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
}

Future Future::ready(at::Tensor value) {
  Future future(make_raw());
  future.raw_->markCompleted(c10::IValue(std::move(value)));
  return future;
}

Future Future::failed(std::exception_ptr error) {
  Future future(make_raw());
  future.raw_->setError(std::move(error));
  return future;
}

bool Future::valid() const {
  return raw_ != nullptr;
}

bool Future::done() const {
  return raw_ && raw_->completed();
}

void Future::check_valid() const {
  if (!raw_) {
    fail("comm", "this Future is empty: nothing was submitted");
  }
}

at::Tensor Future::wait() const {
  check_valid();
  if (!raw_->completed()) {
    CallbackScope::check_wait();
  }
  raw_->waitAndThrow();
  return value();
}

std::exception_ptr Future::error() const {
  return raw_ && raw_->hasError() ? raw_->exception_ptr() : nullptr;
}

at::Tensor Future::value() const {
  const c10::IValue& result = raw_->constValue();
  if (result.isTensor()) {
    return result.toTensor();
  }
  if (result.isTensorList() && !result.toTensorList().empty()) {
    return result.toTensorList().get(0);
  }
  return {};
}

Future Future::then(std::function<at::Tensor(const at::Tensor&)> step) const {
  check_valid();
  return Future(raw_->then(
      [step = std::move(step)](c10::ivalue::Future& completed) {
        const Future self = as_future(completed);
        if (auto failure = self.error()) {
          std::rethrow_exception(failure);
        }
        return c10::IValue(step(self.value()));
      },
      c10::TensorType::get()));
}

void Future::on_done(std::function<void(const Future&)> done) const {
  check_valid();
  raw_->addCallback([done = std::move(done)](c10::ivalue::Future& completed) {
    done(as_future(completed));
  });
}

}  // namespace gradwire
