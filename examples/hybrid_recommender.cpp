// A recommender whose embeddings live on separate workers:
//
//   gradwire run --role trainer=2 --role embedding=2 -- hybrid_recommender
//
// Without roles it is a single process, and ends with the same loss.

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

namespace rpc = gradwire::rpc;
constexpr int kUsers = 50, kItems = 40, kWidth = 8, kBatch = 64, kSteps = 300;

using Tables = std::vector<rpc::RemoteModule<torch::nn::Embedding>>;
static Tables tables;  // of the first trainer

// A batch of users, items and clicks. Two hidden features decide a click.
static std::vector<at::Tensor> read_clicks(int step) {
  torch::manual_seed(7);
  const auto taste = torch::randn({kUsers, 2});
  const auto kind = torch::randn({kItems, 2});
  torch::manual_seed(1000 + step);
  const auto users = torch::randint(kUsers, {kBatch});
  const auto items = torch::randint(kItems, {kBatch});
  const auto liking = (taste.index({users}) * kind.index({items})).sum(1, true);
  return {users, items, (liking > 0).to(torch::kFloat)};
}

static double train(const gradwire::Group& trainers) {
  const auto workers = rpc::workers();
  if (trainers.rank() == 0) {
    tables.emplace_back(workers[workers.size() / 2].name, kUsers, 1);
    tables.emplace_back(workers.back().name, kItems, 2);
  }
  trainers.barrier().wait();
  const auto shared = rpc::call<Tables>(workers.front(), "tables");
  auto embeddings = shared[0].remote_parameters();
  embeddings.push_back(shared[1].remote_parameters()[0]);
  torch::manual_seed(3);
  using namespace torch::nn;
  const auto net = gradwire::DistributedDataParallel(
      Sequential(Linear(2 * kWidth, 32), ReLU(), Linear(32, 1)), trainers);
  const rpc::DistributedOptimizer dense(
      rpc::own_tensors(net->parameters()), torch::optim::SGDOptions(0.3));
  const rpc::DistributedOptimizer sparse(
      embeddings, torch::optim::SGDOptions(20));
  at::Tensor loss;
  auto contexts = torch::empty(trainers.size(), torch::kLong);
  for (int step = 0; step < kSteps; ++step) {
    auto batch = read_clicks(step);
    for (auto& part : batch) {
      part = part.chunk(trainers.size())[trainers.rank()];
    }
    const gradwire::autograd::Context context;
    const auto users = shared[0].forward_async(batch[0]);
    const auto items = shared[1].forward_async(batch[1]);
    const auto rows = torch::cat({users.wait(), items.wait()}, 1);
    loss =
        torch::binary_cross_entropy_with_logits(net->forward(rows), batch[2]);
    gradwire::autograd::backward(context, {loss});
    dense.step(context);
    // Averages the gradients of the embeddings over trainers, as DDP does for
    // the rest. The two collectives keep trainers in step.
    trainers.all_gather(contexts, torch::tensor({context.id()})).wait();
    if (trainers.rank() == 0) {
      const auto* ids = contexts.data_ptr<std::int64_t>();
      sparse.step({ids, ids + trainers.size()}, rpc::Combine::kAverage);
    }
    trainers.barrier().wait();
  }
  loss = loss.detach() / trainers.size();
  return trainers.all_reduce(loss).wait().item<double>();
}

int main() {
  rpc::register_module_factory<torch::nn::Embedding>(
      "Table", [](std::int64_t rows, std::int64_t seed) {
        torch::manual_seed(seed);
        return torch::nn::Embedding(rows, kWidth).ptr();
      });
  rpc::register_function("tables", [] { return tables; });
  const auto group = gradwire::init();
  const auto role = gradwire::role();
  rpc::init(role.name + std::to_string(role.rank), group);
  std::vector<int> ranks;
  for (const auto& worker : rpc::workers()) {
    if (!worker.name.starts_with("embedding")) {
      ranks.push_back(worker.id);
    }
  }
  const auto trainers = group.subgroup(ranks);
  const double loss = trainers ? train(trainers) : 0;
  if (group.rank() == 0) {
    std::cout << "loss " << loss << " (by guessing 0.69)" << std::endl;
  }
  rpc::serve();
  return loss < 0.3 ? 0 : 1;
}
