#include "gradwire/ddp/masters.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <unordered_map>

#include "gradwire/compat/autograd.h"

namespace gradwire {
namespace {

constexpr int kNoBackward = -1;

}  // namespace

struct Masters::State : std::enable_shared_from_this<State> {
  struct Entry {
    at::Tensor tensor;
    at::ScalarType type;
    at::ScalarType full;
    // Null where no gradient is expected.
    compat::NodePtr accumulator;
    at::Tensor copy;
    // While the copy stands in for it.
    at::Tensor master;
    // Of a buffer: what the copy was when it last agreed with the master.
    bool is_buffer;
    at::Tensor agreed;

    void refresh() {
      if (!copy.defined() || copy.sizes() != tensor.sizes() ||
          copy.strides() != tensor.strides()) {
        copy = at::empty_strided(
            tensor.sizes(),
            tensor.strides(),
            tensor.options().dtype(type).requires_grad(false));
        agreed = is_buffer ? at::empty_like(copy) : at::Tensor();
      }
      copy.copy_(tensor);
      note_agreement();
    }

    void note_agreement() {
      if (is_buffer) {
        agreed.copy_(copy);
      }
    }

    // Not where another DDP of the same parameter has done so: that one has the
    // master.
    void lower() {
      if (!master.defined() && copy.defined() && tensor.scalar_type() == full) {
        master = tensor.variable_data();
        exchange(copy);
      }
    }

    // Operations that update buffers do not always say so by the version of the
    // tensor. A master that nobody wrote to keeps all of its digits.
    void restore() {
      if (!master.defined()) {
        return;
      }
      if (is_buffer && !at::equal(copy, agreed)) {
        master.copy_(copy);
        note_agreement();
      }
      exchange(master);
      master.reset();
    }

    // Data of another type lose the parameter its accumulator, and with it all
    // who wait for the gradient.
    void exchange(const at::Tensor& data) {
      tensor.set_data(data);
      if (accumulator) {
        compat::set_accumulator(tensor, accumulator);
      }
    }
  };

  std::vector<Entry> entries;
  std::unordered_map<const void*, std::size_t> index;

  std::mutex mutex;
  // Who computes with the copies: forwards, and backwards by the engine's
  // number.
  int forwards = 0;
  std::set<int> backwards;

  bool in_use() const {
    return forwards > 0 || !backwards.empty();
  }

  void restore_all() {
    for (Entry& entry : entries) {
      entry.restore();
    }
  }

  // In the hands of the engine. A backward that fails runs no callbacks, but
  // drops them.
  class BackwardEnd {
   public:
    BackwardEnd(std::shared_ptr<State> state, int number)
        : state_(std::move(state)), number_(number) {}
    ~BackwardEnd() {
      now();
    }
    BackwardEnd(const BackwardEnd&) = delete;

    void now() {
      state_->end_backward(number_);
    }

   private:
    std::shared_ptr<State> state_;
    int number_;
  };

  void begin_backward();
  void end_backward(int number) {
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(mutex);
    if (backwards.erase(number) > 0 && !in_use()) {
      restore_all();
    }
  }
};

// At the first output of ours that a backward reaches.
void Masters::State::begin_backward() {
  const int number = torch::autograd::get_current_graph_task_id();
  {
    const std::lock_guard lock(mutex);
    if (!backwards.insert(number).second) {
      return;
    }
    for (Entry& entry : entries) {
      entry.lower();
    }
  }
  const auto end = std::make_shared<BackwardEnd>(shared_from_this(), number);
  torch::autograd::Engine::get_default_engine().queue_callback(
      [end] { end->now(); });
}

Masters::Masters(const std::vector<Tensor>& tensors)
    : state_(std::make_shared<State>()) {
  for (const auto& [tensor, type, is_buffer] : tensors) {
    const auto full = tensor.scalar_type();
    if ((full != at::kFloat && full != at::kDouble) || full == type) {
      continue;
    }
    state_->index.emplace(tensor.unsafeGetTensorImpl(), state_->entries.size());
    state_->entries.push_back(
        {.tensor = tensor,
         .type = type,
         .full = full,
         .accumulator = tensor.requires_grad()
                            ? torch::autograd::impl::grad_accumulator(tensor)
                            : nullptr,
         .copy = {},
         .master = {},
         .is_buffer = is_buffer,
         .agreed = {}});
  }
}

void Masters::begin_forward() {
  // A copy that was made in inference mode could never be trained with.
  const c10::InferenceMode plain(false);
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(state_->mutex);
  // One that was broken off, and whose end has not been heard of yet.
  if (torch::autograd::get_current_graph_task_id() == kNoBackward &&
      state_->forwards == 0) {
    state_->backwards.clear();
    state_->restore_all();
  }
  for (State::Entry& entry : state_->entries) {
    if (!entry.master.defined()) {
      entry.refresh();
    }
  }
  ++state_->forwards;
  for (State::Entry& entry : state_->entries) {
    entry.lower();
  }
}

void Masters::end_forward() {
  const c10::InferenceMode plain(false);
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(state_->mutex);
  --state_->forwards;
  if (!state_->in_use()) {
    state_->restore_all();
  }
}

// A leaf keeps what is hung on it for good; its backward has no operation that
// could want a parameter.
void Masters::watch_outputs(const std::vector<at::Tensor*>& outputs) {
  for (const at::Tensor* output : outputs) {
    if (output->defined() && output->requires_grad() && !output->is_leaf()) {
      output->register_hook(
          [state = state_](const at::Tensor&) { state->begin_backward(); });
    }
  }
}

void Masters::restore(const Bucket& bucket) {
  const std::lock_guard lock(state_->mutex);
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    const auto found =
        state_->index.find(bucket.parameter(i).tensor.unsafeGetTensorImpl());
    if (found != state_->index.end()) {
      state_->entries[found->second].restore();
    }
  }
}

}  // namespace gradwire
