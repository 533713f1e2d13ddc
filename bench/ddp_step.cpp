// One rank of the DDP step benchmark: forward and backward of an mlp, timed
// step by step. bench/ddp_step.py starts it beside its Python twin,
// peer_ddp_step.py, which does the same with
// torch.nn.parallel.DistributedDataParallel.

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

namespace {

struct Options {
  std::string hook = "none";
  // Replaces another hook first, so that the hook itself is called where DDP
  // could leave the averaging to the Reducer.
  bool swapped = false;
  std::int64_t width = 2048;
  std::int64_t batch = 32;
  int steps = 40;
  int warmup = 5;
  bool view = false;
};

// The same weights in C++ and Python without any file: a sine of the index.
void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    const auto index = torch::arange(parameter.numel()).to(torch::kFloat);
    parameter.copy_((index * 0.01).sin().mul_(0.02).view(parameter.sizes()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("DDP step benchmark, one rank");
  app.add_option("--hook", options.hook);
  app.add_flag("--swapped", options.swapped);
  app.add_option("--width", options.width);
  app.add_option("--batch", options.batch);
  app.add_option("--steps", options.steps);
  app.add_option("--warmup", options.warmup);
  app.add_flag("--view", options.view);
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  auto group = gradwire::init();
  const auto n = options.width;
  torch::nn::Sequential net(
      torch::nn::Linear(1024, n),
      torch::nn::ReLU(),
      torch::nn::Linear(n, n),
      torch::nn::ReLU(),
      torch::nn::Linear(n, 10));
  fill(*net);
  auto ddp = gradwire::DistributedDataParallel(
      net,
      group,
      {.hook = options.swapped ? "noop" : options.hook,
       .gradient_as_bucket_view = options.view});
  if (options.swapped) {
    ddp->set_hook(options.hook);
  }
  const auto input = torch::ones({options.batch, 1024}) * (group.rank() + 1);

  std::vector<double> step_ms;
  for (int step = 0; step < options.warmup + options.steps; ++step) {
    ddp->zero_grad();
    group.barrier().wait();
    const auto start = std::chrono::steady_clock::now();
    ddp->forward(input).sum().backward();
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    if (step >= options.warmup) {
      step_ms.push_back(spent.count());
    }
  }
  double norm = 0;
  for (const auto& parameter : ddp->parameters()) {
    norm += parameter.grad().norm().item<double>();
  }
  if (group.rank() == 0) {
    const nlohmann::json result{
        {"step_ms", step_ms},
        {"gradient_norm", norm},
        {"exposed_ms", ddp->stats().mean.exposed_ms},
        {"bytes_per_step", ddp->stats().sent_last_step.total()}};
    std::cout << result.dump() << std::endl;
  }
  group.barrier().wait();
  return 0;
}
