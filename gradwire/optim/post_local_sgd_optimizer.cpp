#include "gradwire/optim/post_local_sgd_optimizer.h"

#include <torch/optim/optimizer.h>

#include "gradwire/base/error.h"
#include "gradwire/hook/registry.h"

namespace gradwire {
namespace {

// Between a start that comes first and a warm-up that ends later, nobody
// averages anything; the other way round it is done twice.
void check_start(const HookSpec& hook, std::int64_t warmup) {
  const Options* local = hook.find("post_local_sgd");
  if (local == nullptr && !hook.stays_local()) {
    fail(
        "optim",
        "hook '",
        hook.text(),
        "' averages all gradients in every step, expected "
        "post_local_sgd:start=",
        warmup);
  }
  if (local != nullptr && local->integer("start") != warmup) {
    fail(
        "optim",
        "hook '",
        hook.text(),
        "' goes local after ",
        local->integer("start"),
        " steps but the averager begins after ",
        warmup,
        ", expected the same number");
  }
}

}  // namespace

PostLocalSGDOptimizer::PostLocalSGDOptimizer(
    torch::optim::Optimizer& inner, ModelAverager& averager)
    : inner_(inner), averager_(averager) {}

PostLocalSGDOptimizer::PostLocalSGDOptimizer(
    torch::optim::Optimizer& inner,
    ModelAverager& averager,
    const std::string& hook)
    : PostLocalSGDOptimizer(inner, averager) {
  check_start(HookSpec(hook), averager.warmup());
}

at::Tensor PostLocalSGDOptimizer::step(
    const std::function<at::Tensor()>& closure) {
  at::Tensor loss = inner_.step(closure);
  averager_.average_parameters();
  return loss;
}

void PostLocalSGDOptimizer::zero_grad(bool set_to_none) {
  inner_.zero_grad(set_to_none);
}

}  // namespace gradwire
