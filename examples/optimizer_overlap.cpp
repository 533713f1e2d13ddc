// An optimizer whose steps overlap with backward and communication: what
// backward() leaves is what backward() and adam.step() would.
//
//   gradwire run --nproc 2 -- build/release/examples/optimizer_overlap

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto group = gradwire::init();
  torch::nn::Sequential net(
      torch::nn::Linear(32, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  torch::optim::Adam adam(net->parameters(), 0.01);
  auto ddp = gradwire::DistributedDataParallel(
      net,
      group,
      {.hook = gradwire::optimizer_overlap(
           "int8",
           adam,
           {.gradients = gradwire::OverlapOptions::Gradients::kFree,
            .clip_value = 0.1})});

  double first = 0;
  double last = 0;
  for (int step = 0; step < 60; ++step) {
    // Read anew at every step, so any schedule works.
    adam.param_groups()[0].options().set_lr(step < 40 ? 0.01 : 0.002);
    const auto x = torch::randn({32, 32});
    const auto loss =
        torch::mse_loss(ddp->forward(x), x.mean(1, /*keepdim=*/true).mul(4));
    loss.backward();  // averages, clips, steps and frees the gradients
    last = loss.item<double>();
    first = step == 0 ? last : first;
  }
  const auto stats = ddp->stats();
  if (group.rank() == 0) {
    std::cout << stats << "\nloss " << first << " -> " << last << std::endl;
  }
  group.barrier().wait();
  return stats.steps == 60 && last < first ? 0 : 1;
}
