#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <future>
#include <thread>

#include "gradwire/rpc/context.h"
#include "gradwire/rpc/distributed_optimizer.h"
#include "gradwire/rpc/remote_module.h"
#include "tests/rpc/workers.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

using autograd::Context;
using rpc::DistributedOptimizer;
using rpc::RemoteModule;

// Rows of a table, with sparse gradients or dense ones.
struct RowsImpl : torch::nn::Module {
  explicit RowsImpl(bool sparse)
      : table(register_module(
            "table",
            torch::nn::Embedding(
                torch::nn::EmbeddingOptions(6, 2).sparse(sparse)))) {
    const torch::NoGradGuard no_grad;
    table->weight.copy_(torch::arange(12.0).view({6, 2}) / 12);
  }
  at::Tensor forward(const at::Tensor& ids) {
    return table(ids);
  }
  torch::nn::Embedding table;
};
TORCH_MODULE(Rows);

void register_rows() {
  rpc::register_module<Rows, bool>("Rows");
}

at::Tensor loss_of(const at::Tensor& rows, const at::Tensor& weight) {
  return rows.matmul(weight).square().sum();
}

// Trains remote rows and a local weight; the same in one process.
template <class Optimizer, class Options>
void compare_with_local(const Options& options, bool sparse) {
  once<register_rows>();
  run_workers(2, [&](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    const RemoteModule<Rows> remote("worker1", sparse);
    const auto weight = torch::ones({2, 1}).requires_grad_();
    auto parameters = remote.remote_parameters();
    parameters.push_back(rpc::own_tensors({weight}).front());
    const DistributedOptimizer optimizer(parameters, options);

    Rows local(sparse);
    const auto local_weight = torch::ones({2, 1}).requires_grad_();
    Optimizer local_rows(local->parameters(), options);
    Optimizer local_other({local_weight}, options);
    for (int step = 0; step < 4; ++step) {
      const auto ids = torch::tensor({step, step + 1, 0}, torch::kLong);
      {
        const Context context;
        autograd::backward(context, {loss_of(remote.forward(ids), weight)});
        optimizer.step(context);
      }
      local_rows.zero_grad();
      local_other.zero_grad();
      loss_of(local->forward(ids), local_weight).backward();
      local_rows.step();
      local_other.step();
    }
    EXPECT_TRUE(torch::allclose(weight, local_weight, 1e-6, 1e-7));
    EXPECT_TRUE(torch::allclose(
        remote.state().at("table.weight"), local->table->weight, 1e-6, 1e-7));
    EXPECT_FALSE(weight.grad().defined());
  });
}

TEST(DistributedOptimizerProcesses, SgdEqualsLocal) {
  compare_with_local<torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01), false);
}
TEST(DistributedOptimizerProcesses, AdamEqualsLocal) {
  compare_with_local<torch::optim::Adam>(
      torch::optim::AdamOptions(0.1).weight_decay(0.01), false);
}
TEST(DistributedOptimizerProcesses, AdamWEqualsLocal) {
  compare_with_local<torch::optim::AdamW>(
      torch::optim::AdamWOptions(0.1), false);
}
TEST(DistributedOptimizerProcesses, AdagradEqualsLocal) {
  compare_with_local<torch::optim::Adagrad>(
      torch::optim::AdagradOptions(0.1), false);
}
TEST(DistributedOptimizerProcesses, SparseSgdEqualsLocal) {
  compare_with_local<torch::optim::SGD>(torch::optim::SGDOptions(0.1), true);
}
TEST(DistributedOptimizerProcesses, SparseAdagradEqualsLocal) {
  compare_with_local<torch::optim::Adagrad>(
      torch::optim::AdagradOptions(0.1), true);
}

TEST(DistributedOptimizerProcesses, SparseGradientsThatDoNotFitAreRefused) {
  once<register_rows>();
  run_workers(2, [&](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    const RemoteModule<Rows> remote("worker1", true);
    const auto before = remote.state().at("table.weight");
    const auto parameters = remote.remote_parameters();
    const Context context;
    autograd::backward(
        context, {remote.forward(torch::tensor({1, 2}, torch::kLong)).sum()});
    EXPECT_ERROR(
        rpc::RemoteError,
        DistributedOptimizer(parameters, torch::optim::AdamOptions(0.1))
            .step(context),
        "Adam does not take sparse gradients, expected SGD or Adagrad");
    EXPECT_ERROR(
        rpc::RemoteError,
        DistributedOptimizer(
            parameters, torch::optim::SGDOptions(0.1).weight_decay(1))
            .step(context),
        "SGD does not take sparse gradients with weight_decay");
    EXPECT_TRUE(torch::equal(remote.state().at("table.weight"), before));
    EXPECT_ERROR(
        Error,
        DistributedOptimizer({}, torch::optim::AdamOptions(0.1)),
        "DistributedOptimizer got no parameters");
    const DistributedOptimizer sgd(parameters, torch::optim::SGDOptions(0.1));
    EXPECT_ERROR(
        Error, sgd.step(std::vector<autograd::ContextId>{}), "no contexts");
    EXPECT_ERROR(
        rpc::RemoteError,
        sgd.step({123456}),
        "context 123456 is not known on worker 'worker1'");
  });
}

// What another thread, as another trainer would, does with a context of its
// own, which stays open until this object ends.
class OtherTrainer {
 public:
  explicit OtherTrainer(std::function<void(const Context&)> work)
      : thread_([this, work = std::move(work)] {
          const Context context;
          work(context);
          id_.set_value(context.id());
          end_.get_future().wait();
        }) {}
  ~OtherTrainer() {
    end_.set_value();
    thread_.join();
  }
  // When it has done its work.
  autograd::ContextId context() {
    return id_.get_future().get();
  }

 private:
  std::promise<autograd::ContextId> id_;
  std::promise<void> end_;
  std::thread thread_;
};

TEST(DistributedOptimizerProcesses, ContextsAreSummedOrAveraged) {
  once<register_rows>();
  run_workers(2, [&](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    const auto ids = torch::tensor({1}, torch::kLong);
    for (const auto combine : {rpc::Combine::kSum, rpc::Combine::kAverage}) {
      const RemoteModule<Rows> rows("worker1", false);
      auto expected = rows.state().at("table.weight");
      const Context one;
      autograd::backward(one, {rows.forward(ids).sum()});
      OtherTrainer other([&](const Context& two) {
        autograd::backward(two, {3 * rows.forward(ids).sum()});
      });
      const DistributedOptimizer sgd(
          rows.remote_parameters(), torch::optim::SGDOptions(0.5));
      sgd.step({one.id(), other.context()}, combine);
      expected[1] -= 0.5 * (combine == rpc::Combine::kSum ? 4 : 2);
      EXPECT_TRUE(torch::allclose(rows.state().at("table.weight"), expected));
    }
  });
}

struct DenseImpl : torch::nn::Module {
  DenseImpl() : weight(register_parameter("weight", torch::ones({1, 1}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x.matmul(weight);
  }
  at::Tensor weight;
};
TORCH_MODULE(Dense);

void register_dense() {
  rpc::register_module<Dense>("Dense");
}

// The gradient of x after another trainer's step between forward and backward.
template <class Options>
double gradient_after_a_step(const Options& options) {
  const RemoteModule<Dense> dense("worker1");
  const DistributedOptimizer optimizer(dense.remote_parameters(), options);
  const auto x = torch::ones({1, 1}).requires_grad_();
  const Context context;
  const auto loss = dense.forward(x).sum();
  OtherTrainer other([&](const Context& theirs) {
    autograd::backward(theirs, {dense.forward(torch::ones({1, 1})).sum()});
    optimizer.step(theirs);
  });
  other.context();
  autograd::backward(context, {loss});
  return autograd::gradients(context).of(x).item<double>();
}

TEST(DistributedOptimizerProcesses, AStepDuringAnOpenContext) {
  once<register_dense>();
  run_workers(2, [&](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    // The new weight: it was 1 in the forward.
    EXPECT_DOUBLE_EQ(gradient_after_a_step(torch::optim::SGDOptions(0.5)), 0.5);
    for (const bool adam : {true, false}) {
      EXPECT_ERROR(
          Error,
          adam ? gradient_after_a_step(torch::optim::AdamOptions(0.5))
               : gradient_after_a_step(torch::optim::AdagradOptions(0.5)),
          "backward failed",
          "has been modified by an inplace operation");
    }
  });
}

}  // namespace
}  // namespace gradwire::test
