#include "gradwire/ddp/watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "gradwire/base/error.h"

namespace gradwire {

using torch::autograd::Engine;
using Tensors = torch::autograd::variable_list;

struct GradientWatch::State : std::enable_shared_from_this<State> {
  std::vector<std::string> names;
  Options options;
  std::function<void()> on_begin;
  std::function<void(const Step&)> on_end;

  std::mutex begin_mutex;
  std::exception_ptr begin_failure;
  // Of what follows.
  mutable std::mutex mutex;
  bool armed = false;
  bool begun = false;
  bool end_queued = false;
  std::vector<char> ready;
  std::size_t ready_count = 0;
  Step times;

  void on_output() {
    const std::lock_guard lock(mutex);
    begin();
  }

  void begin() {
    if (armed && !begun) {
      begun = true;
      times.backward_began = Step::Clock::now();
    }
  }

  // Other gradients wait until the first one has begun the backward, and fail
  // with it.
  void on_gradient(std::size_t index) {
    const std::lock_guard lock(begin_mutex);
    if (begin_failure) {
      std::rethrow_exception(begin_failure);
    }
    if (note_gradient(index)) {
      try {
        on_begin();
      } catch (...) {
        begin_failure = std::current_exception();
        throw;
      }
    }
  }

  // Whether it is the first one.
  bool note_gradient(std::size_t index) {
    const std::lock_guard lock(mutex);
    if (!armed) {
      return false;  // inside no_sync, or a backward of something else
    }
    begin();
    queue_end();
    times.last_gradient = Step::Clock::now();
    if (ready[index]) {
      if (options.static_graph) {
        return false;
      }
      fail_at(
          {.rank = options.rank},
          "ddp",
          "the gradient of '",
          names[index],
          "' became ready twice in one backward: the parameter is used "
          "outside of forward(), in several backward calls or by reentrant "
          "checkpointing; call backward once a forward, or set static_graph");
    }
    ready[index] = 1;
    return ++ready_count == 1;
  }

  // Autograd runs its final callbacks in the order they were queued, also
  // those queued by callbacks. Ours comes before the Reducer's, which waits for
  // the averages, so it queues another one behind it.
  void queue_end() {
    if (end_queued) {
      return;
    }
    end_queued = true;
    Engine::get_default_engine().queue_callback([self = shared_from_this()] {
      Engine::get_default_engine().queue_callback([self] { self->end(); });
    });
  }

  void end() {
    if (note_end()) {
      on_end(times);
    }
  }

  bool note_end() {
    const std::lock_guard lock(mutex);
    end_queued = false;
    const bool complete = ready_count == names.size() ||
                          options.find_unused_parameters ||
                          options.static_graph;
    if (!armed || !complete) {
      return false;  // another backward brings the rest
    }
    armed = false;
    times.ended = Step::Clock::now();
    return true;
  }
};

GradientWatch::GradientWatch(
    const Parameters& parameters,
    Options options,
    std::function<void()> on_begin,
    std::function<void(const Step&)> on_end)
    : state_(std::make_shared<State>()) {
  state_->options = options;
  state_->on_begin = std::move(on_begin);
  state_->on_end = std::move(on_end);
  state_->ready.resize(parameters.size());
  for (const auto& parameter : parameters) {
    const std::size_t index = state_->names.size();
    state_->names.push_back(parameter->name);
    auto accumulator =
        torch::autograd::impl::grad_accumulator(parameter->tensor);
    const auto key = accumulator->add_post_hook(
        std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [state = state_, index](const Tensors& outputs, const Tensors&) {
              state->on_gradient(index);
              return outputs;
            }));
    registrations_.push_back({parameter->tensor, std::move(accumulator), key});
  }
}

GradientWatch::~GradientWatch() {
  for (auto& registration : registrations_) {
    registration.accumulator->del_post_hook(registration.key);
  }
  disarm();
  state_->on_begin = [] {};
  state_->on_end = [](const Step&) {};
}

void GradientWatch::reattach() {
  for (const auto& registration : registrations_) {
    const auto current =
        torch::autograd::impl::try_get_grad_accumulator(registration.parameter);
    if (current != registration.accumulator) {
      compat::set_accumulator(registration.parameter, registration.accumulator);
    }
  }
}

void GradientWatch::arm() {
  const std::lock_guard begin_lock(state_->begin_mutex);
  state_->begin_failure = nullptr;
  const std::lock_guard lock(state_->mutex);
  state_->armed = true;
  state_->begun = false;
  state_->end_queued = false;
  std::ranges::fill(state_->ready, 0);
  state_->ready_count = 0;
}

void GradientWatch::disarm() {
  const std::lock_guard lock(state_->mutex);
  state_->armed = false;
}

bool GradientWatch::armed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->armed;
}

void GradientWatch::watch_output(const at::Tensor& output) {
  if (!output.is_leaf()) {
    output.register_hook(
        [state = state_](const at::Tensor&) { state->on_output(); });
  }
}

std::vector<std::string> GradientWatch::missing() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> result;
  for (std::size_t i = 0; i < state_->names.size(); ++i) {
    if (state_->begun && !state_->ready[i]) {
      result.push_back(state_->names[i]);
    }
  }
  return result;
}

}  // namespace gradwire
