// Data-parallel training of an mlp, in three lines more than on one process.
//
//   gradwire run --nproc 3 -- build/release/examples/train_mlp
//
// Rank 0 prints statistics and a final loss below 0.2.

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto group = gradwire::init();  // torchrun, mpirun, Slurm or one process
  torch::manual_seed(group.rank());
  torch::nn::Sequential net(
      torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 1));
  auto ddp =
      gradwire::DistributedDataParallel(net, group, {.hook = "allreduce"});
  torch::optim::Adam adam(ddp->parameters(), 0.01);

  double loss_value = 0;
  for (int step = 0; step < 300; ++step) {
    // Each rank draws its own samples of y, the sum of |x| over features.
    const auto x = torch::randn({64, 8});
    const auto y = x.abs().sum(1, /*keepdim=*/true);
    adam.zero_grad();
    auto loss = torch::mse_loss(ddp->forward(x), y) / 8;
    loss.backward();  // averages gradients while it runs
    adam.step();
    loss_value = loss.item<double>();
  }
  if (group.rank() == 0) {
    std::cout << ddp->stats() << "\nloss " << loss_value << std::endl;
  }
  group.barrier().wait();
  return loss_value < 0.2 ? 0 : 1;
}
