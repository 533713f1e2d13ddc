// Gradient accumulation: several micro-batches, averaged once.
//
//   gradwire run --nproc 2 -- build/release/examples/accumulate

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  constexpr int kMicroBatches = 4;
  auto group = gradwire::init();
  torch::nn::Linear net(32, 1);
  auto ddp = gradwire::DistributedDataParallel(net, group);
  torch::optim::SGD sgd(ddp->parameters(), 0.05);

  for (int step = 0; step < 20; ++step) {
    sgd.zero_grad();
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      const auto x = torch::randn({16, 32});
      const auto y = x.sum(1, /*keepdim=*/true);
      const auto backward = [&] {
        (torch::mse_loss(ddp->forward(x), y) / kMicroBatches).backward();
      };
      if (micro + 1 < kMicroBatches) {
        const auto guard = ddp->no_sync();  // gradients stay local
        backward();
      } else {
        backward();  // averages the sum of all micro-batches
      }
    }
    sgd.step();
  }
  const auto stats = ddp->stats();
  if (group.rank() == 0) {
    std::cout << stats << std::endl;
  }
  group.barrier().wait();
  return stats.steps == 20 ? 0 : 1;
}
