// The smallest program that trains data-parallel with an installed gradwire.

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto group = gradwire::init();
  torch::nn::Linear net(4, 1);
  auto ddp =
      gradwire::DistributedDataParallel(net, group, {.hook = "allreduce"});
  torch::optim::SGD sgd(ddp->parameters(), 0.1);
  for (int step = 0; step < 10; ++step) {
    sgd.zero_grad();
    ddp->forward(torch::randn({8, 4})).square().mean().backward();
    sgd.step();
  }
  std::cout << ddp->stats() << std::endl;
  group.barrier().wait();
  return ddp->stats().steps == 10 ? 0 : 1;
}
