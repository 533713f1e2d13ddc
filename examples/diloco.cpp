// DiLoCo: ranks train by themselves, and every so often an outer optimizer
// follows the average of how far they came. Half of the model is sent at a
// time, in 4 bits a number, while training goes on.
//
//   gradwire run --nproc 2 -- build/release/examples/diloco

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto group = gradwire::init();
  torch::manual_seed(group.rank());
  torch::nn::Sequential net(
      torch::nn::Linear(32, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  gradwire::DiLoCo diloco(
      group,
      gradwire::tensors_of(net),
      {.period = 16,
       .average = "int4",
       .fragments = 2,
       .delay = 2,
       .mix = 0.5});

  double loss = 0;
  for (int step = 0; step < 128; ++step) {
    const auto x = torch::randn({64, 32});
    adamw.zero_grad();
    auto error = torch::mse_loss(net->forward(x), x.mean(1, /*keepdim=*/true));
    error.backward();
    adamw.step();
    diloco.step();
    loss = error.item<double>();
  }
  diloco.finish();  // all ranks have the same model

  const auto stats = diloco.stats();
  if (group.rank() == 0) {
    std::cout << "loss " << loss << ", " << stats.outer_steps
              << " outer steps, " << stats.sent.total() << " bytes"
              << std::endl;
  }
  group.barrier().wait();
  return loss < 0.01 && stats.outer_steps == 16 ? 0 : 1;
}
