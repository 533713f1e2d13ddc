// Local SGD: ranks train by themselves and average their models every few
// steps.
//
//   gradwire run --nproc 2 -- build/release/examples/local_sgd

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  constexpr int kSteps = 40;
  auto group = gradwire::init();
  torch::nn::Linear net(32, 1);
  // Ten steps with averaged gradients, then none of them is sent.
  auto ddp = gradwire::DistributedDataParallel(
      net, group, {.hook = "post_local_sgd:start=10,subgroup=1"});
  torch::optim::SGD sgd(ddp->parameters(), 0.05);
  gradwire::PeriodicModelAverager averager(
      group,
      gradwire::tensors_of(ddp),
      {.period = 5, .warmup = 10, .average = "int8"});
  gradwire::PostLocalSGDOptimizer optimizer(sgd, averager, ddp->hook());

  double loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto x = torch::randn({64, 32});
    optimizer.zero_grad();
    auto error = torch::mse_loss(ddp->forward(x), x.sum(1, /*keepdim=*/true));
    error.backward();
    optimizer.step();  // averages every fifth time
    loss = error.item<double>();
  }
  averager.average_now();

  const auto stats = averager.stats();
  if (group.rank() == 0) {
    std::cout << "loss " << loss << ", " << stats.averages << " averages, "
              << stats.sent.total() << " bytes of models, "
              << ddp->stats().sent.total() << " of gradients" << std::endl;
  }
  group.barrier().wait();
  return stats.averages == 7 ? 0 : 1;
}
