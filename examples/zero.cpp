// Adam whose state is dealt out over the ranks.
//
//   gradwire run --nproc 2 -- build/release/examples/zero

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto group = gradwire::init();
  torch::nn::Sequential net(
      torch::nn::Linear(64, 256), torch::nn::Tanh(), torch::nn::Linear(256, 1));
  auto ddp = gradwire::DistributedDataParallel(net, group);
  gradwire::ZeroRedundancyOptimizer zero(
      group,
      ddp->parameters(),
      gradwire::sliced<torch::optim::Adam>(torch::optim::AdamOptions(1e-3)),
      {.parameters = "bf16"});
  torch::optim::StepLR schedule(zero, /*step_size=*/20, /*gamma=*/0.5);

  float loss = 0;
  for (int step = 0; step < 60; ++step) {
    const auto x = torch::randn({32, 64});
    zero.zero_grad();
    auto error = torch::mse_loss(ddp->forward(x), x.mean(1, /*keepdim=*/true));
    error.backward();  // averages gradients
    zero.step();       // a part of the parameters, then all ranks get all
    schedule.step();
    loss = error.item<float>();
  }
  const auto stats = zero.stats();
  std::cout << "rank " << group.rank() << ": loss " << loss << ", "
            << stats.state_bytes << " bytes of state, " << stats.sent.total()
            << " bytes sent\n";
  group.barrier().wait();
  return stats.steps == 60 && loss < 0.1F ? 0 : 1;
}
