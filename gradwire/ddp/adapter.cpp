#include "gradwire/ddp/adapter.h"

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <unordered_map>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

Future::Raw make_raw() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
}

// The same kind of error with the place added.
std::exception_ptr add_place(
    const std::exception_ptr& error,
    const std::string& place) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError& e) {
    return std::make_exception_ptr(CommError(e.what() + place));
  } catch (const Error& e) {
    return std::make_exception_ptr(Error(e.what() + place));
  } catch (const c10::Error& e) {
    return std::make_exception_ptr(Error(
        concat("[gradwire.hook] ", e.what_without_backtrace(), place)));
  } catch (const std::exception& e) {
    return std::make_exception_ptr(
        Error(concat("[gradwire.hook] ", e.what(), place)));
  } catch (...) {
    return std::make_exception_ptr(
        Error("[gradwire.hook] the hook threw something unknown" + place));
  }
}

}  // namespace

struct HookAdapter::State {
  std::unordered_map<const void*, std::shared_ptr<const Parameter>> parameters;
  int rank = 0;
  std::function<void()> on_failure;

  std::shared_ptr<Hook> hook;
  std::string text;
  std::size_t next_index = 0;
  std::size_t parameters_seen = 0;
  bool layout_changed = false;

  Bucket next_bucket(const c10d::GradBucket& bucket) {
    std::vector<std::shared_ptr<const Parameter>> members;
    for (const auto& tensor : bucket.getParameters()) {
      members.push_back(parameters.at(tensor.unsafeGetTensorImpl()));
    }
    parameters_seen += members.size();
    return Bucket(
        next_index++,
        parameters_seen == parameters.size(),
        bucket.getBuffer(),
        std::move(members));
  }

  Future reduce(Bucket& bucket) {
    if (std::exchange(layout_changed, false)) {
      hook->rebuild();
    }
    Future future = hook->reduce(bucket);
    if (!future.valid()) {
      fail("hook", "the hook returned an empty Future");
    }
    return future;
  }

  std::string place(std::size_t index) const {
    return concat(" (hook ", text, ", rank ", rank, ", bucket ", index, ")");
  }
};

class HookAdapter::CommHook : public c10d::CommHookInterface {
 public:
  explicit CommHook(std::shared_ptr<State> state) : state_(std::move(state)) {
  }

  Future::Raw runHook(c10d::GradBucket& grad_bucket) override {
    auto result = make_raw();
    const std::size_t index = state_->next_index;
    try {
      Bucket bucket = state_->next_bucket(grad_bucket);
      const auto elems = bucket.is_sparse() ? -1 : bucket.buffer().numel();
      state_->reduce(bucket).on_done(
          [state = state_, result, index, elems](const Future& done) {
            complete(*state, result, index, elems, done);
          });
    } catch (...) {
      set_error(*state_, result, index, std::current_exception());
    }
    return result;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return result.toTensor();
  }

 private:
  static void complete(
      const State& state,
      const Future::Raw& result,
      std::size_t index,
      std::int64_t elems,
      const Future& done) {
    if (auto error = done.error()) {
      set_error(state, result, index, error);
      return;
    }
    const at::Tensor value = done.wait();
    if (!value.defined() || (elems >= 0 && value.numel() != elems)) {
      set_error(
          state, result, index,
          std::make_exception_ptr(Error(concat(
              "[gradwire.hook] the hook's result has ",
              value.defined() ? value.numel() : 0, " elements, expected ",
              elems))));
      return;
    }
    result->markCompleted(c10::IValue(value));
  }

  static void set_error(
      const State& state,
      const Future::Raw& result,
      std::size_t index,
      const std::exception_ptr& error) {
    state.on_failure();
    result->setError(add_place(error, state.place(index)));
  }

  std::shared_ptr<State> state_;
};

HookAdapter::HookAdapter(
    const std::vector<std::shared_ptr<const Parameter>>& parameters,
    int rank,
    std::function<void()> on_failure)
    : state_(std::make_shared<State>()) {
  for (const auto& parameter : parameters) {
    state_->parameters.emplace(
        parameter->tensor.unsafeGetTensorImpl(), parameter);
  }
  state_->rank = rank;
  state_->on_failure = std::move(on_failure);
}

HookAdapter::~HookAdapter() = default;

std::unique_ptr<c10d::CommHookInterface> HookAdapter::make_comm_hook() {
  return std::make_unique<CommHook>(state_);
}

void HookAdapter::set_hook(std::shared_ptr<Hook> hook, std::string text) {
  state_->hook = std::move(hook);
  state_->text = std::move(text);
}

void HookAdapter::begin_backward() {
  state_->next_index = 0;
  state_->parameters_seen = 0;
}

void HookAdapter::layout_changed() {
  state_->layout_changed = true;
}

}  // namespace gradwire
