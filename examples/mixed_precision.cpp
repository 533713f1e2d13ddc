// Mixed precision: computes in fp16, steps in fp32, scales the loss.
//
//   gradwire run --nproc 2 -- build/release/examples/mixed_precision
//
// Rank 0 prints statistics, the scale and a final loss below 0.2.

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto group = gradwire::init();
  torch::manual_seed(group.rank());
  torch::nn::Sequential net(
      torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 1));
  auto ddp = gradwire::DistributedDataParallel(
      net,
      group,
      {.precision = {.parameters = at::kHalf, .reduction = at::kHalf}});
  torch::optim::Adam adam(ddp->parameters(), 0.01);  // has fp32 parameters
  gradwire::GradScaler scaler({.growth_interval = 100});

  double loss_value = 0;
  int skipped = 0;
  for (int step = 0; step < 300; ++step) {
    const auto x = torch::randn({64, 8});
    const auto y = x.abs().sum(1, /*keepdim=*/true);
    adam.zero_grad();
    const auto output = ddp->forward(x);  // computes in fp16
    auto loss = torch::mse_loss(output.to(torch::kFloat), y) / 8;
    scaler.scale(loss).backward();  // gradients travel in fp16
    skipped += !scaler.step(adam);
    scaler.update();
    loss_value = loss.item<double>();
  }
  if (group.rank() == 0) {
    std::cout << ddp->stats() << "\nscale " << scaler.scale() << ", " << skipped
              << " steps skipped, loss " << loss_value << std::endl;
  }
  group.barrier().wait();
  return loss_value < 0.2 && ddp->hook() == "fp16" ? 0 : 1;
}
