#include "gradwire/ddp/sink.h"

#include <torch/csrc/autograd/functions/utils.h>

#include "gradwire/compat/autograd.h"

namespace gradwire {
namespace {

using torch::autograd::variable_list;

class Sink : public torch::autograd::Node {
 public:
  explicit Sink(std::function<void()> on_backward)
      : on_backward_(std::move(on_backward)) {}

  variable_list apply(variable_list&& gradients) override {
    on_backward_();
    return std::move(gradients);
  }

  std::string name() const override {
    return "gradwire::Sink";
  }

 private:
  std::function<void()> on_backward_;
};

}  // namespace

void attach_sink(
    const std::vector<at::Tensor*>& outputs,
    std::function<void()> on_backward) {
  variable_list inputs;
  std::vector<at::Tensor*> attached;
  for (at::Tensor* output : outputs) {
    if (output->defined() && output->grad_fn()) {
      inputs.push_back(*output);
      attached.push_back(output);
    }
  }
  if (attached.empty()) {
    return;
  }
  auto sink = compat::make_node<Sink>(std::move(on_backward));
  sink->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (at::Tensor* output : attached) {
    at::Tensor shared = output->detach();
    torch::autograd::set_history(shared, sink);
    *output = std::move(shared);
  }
}

}  // namespace gradwire
