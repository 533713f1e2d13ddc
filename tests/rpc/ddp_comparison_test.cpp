// PyTorch's DdpComparisonTest in C++: gradients of a distributed backward equal
// those of a local one, four processes.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "gradwire/ddp/join.h"
#include "gradwire/rpc/context.h"
#include "gradwire/rpc/remote_module.h"
#include "tests/rpc/workers.h"

namespace gradwire::test {
namespace {

using autograd::Context;
using rpc::RemoteModule;
using torch::nn::EmbeddingBag;
using torch::nn::Linear;

constexpr int kRanks = 4;

class DdpComparisonProcesses : public testing::TestWithParam<std::string> {
 protected:
  // Two DDPs that start alike: hooks remember what they have seen.
  void compare(bool uneven) {
    run_workers(kRanks, [&](const Group& group) {
      torch::manual_seed(group.rank());
      Linear net(2, 3);
      const DistributedDataParallel<Linear> ddp(
          net, group, {.hook = GetParam()});
      Linear local_net(2, 3);
      {
        const torch::NoGradGuard no_grad;
        local_net->weight.copy_(net->weight);
        local_net->bias.copy_(net->bias);
      }
      const DistributedDataParallel<Linear> local(
          local_net, group, {.hook = GetParam()});
      const int inputs = uneven && group.rank() % 2 == 1 ? 1 : 3;
      const Join join(ddp, local);
      for (int i = 0; i < inputs; ++i) {
        const auto input = torch::rand({3, 2});
        const Context context;
        autograd::backward(context, {ddp->forward(input).norm()});
        local->zero_grad();
        local->forward(input).norm().backward();
        const auto gradients = autograd::gradients(context);
        EXPECT_EQ(gradients.size(), 2u);
        EXPECT_TRUE(
            torch::equal(gradients.of(net->weight), local_net->weight.grad()));
        EXPECT_TRUE(
            torch::equal(gradients.of(net->bias), local_net->bias.grad()));
        EXPECT_FALSE(net->weight.grad().defined());
      }
    });
  }
};

TEST_P(DdpComparisonProcesses, DdpComparison) {
  compare(false);
}
TEST_P(DdpComparisonProcesses, DdpComparisonUnevenInputs) {
  compare(true);
}

TEST_P(DdpComparisonProcesses, DdpDistAutogradSparseGrads) {
  run_workers(kRanks, [&](const Group& group) {
    torch::manual_seed(group.rank());
    EmbeddingBag net(torch::nn::EmbeddingBagOptions(10, 3).sparse(true));
    const std::string hook = GetParam() == "none" ? "none"
                             : GetParam() == "int8"
                                 ? "int8:sparse=pass"
                                 : GetParam() + ",sparse=pass";
    const DistributedDataParallel<EmbeddingBag> ddp(net, group, {.hook = hook});
    const auto ids = torch::randint(10, {10}, torch::kLong);
    const auto offsets = torch::tensor({0, 4}, torch::kLong);
    const Context context;
    autograd::backward(context, {ddp->forward(ids, offsets).sum()});
    ddp->forward(ids, offsets).sum().backward();
    const auto gradients = autograd::gradients(context);
    EXPECT_EQ(gradients.size(), 1u);
    const auto gradient = gradients.of(net->weight);
    EXPECT_TRUE(gradient.is_sparse());
    EXPECT_TRUE(
        torch::equal(gradient.to_dense(), net->weight.grad().to_dense()));
  });
}

struct ServedLinearImpl : torch::nn::LinearImpl {
  ServedLinearImpl(std::int64_t in, std::int64_t out)
      : LinearImpl(torch::nn::LinearOptions(in, out).bias(false)) {}
};
TORCH_MODULE(ServedLinear);

// The module that lives here, whose weight gets gradients in contexts.
std::shared_ptr<ServedLinearImpl> served;

void register_served_layer() {
  rpc::register_module_factory<ServedLinear>(
      "ServedLinear", [](std::int64_t in, std::int64_t out) {
        served = std::make_shared<ServedLinearImpl>(in, out);
        return served;
      });
  rpc::register_function("weight_gradient", [](autograd::ContextId context) {
    return autograd::gradients(context).of(served->weight);
  });
}

TEST_P(DdpComparisonProcesses, DdpDistAutogradLocalVsRemote) {
  once<register_served_layer>();
  run_workers(kRanks, [&](const Group& group) {
    // One rank after another uses the module on worker 0, then all together.
    for (const char* place : {"worker0/cpu", "worker0"}) {
      torch::manual_seed(group.rank());
      std::optional<RemoteModule<ServedLinear>> remote;
      for (int turn = 0; turn < group.size(); ++turn) {
        if (turn == group.rank()) {
          remote.emplace(place, 10, 5);
        }
        group.barrier().wait();
      }
      Linear local(torch::nn::LinearOptions(10, 5).bias(false));
      {
        const torch::NoGradGuard no_grad;
        local->weight.copy_(remote->state().at("weight"));
      }
      Linear top(5, 1);
      const DistributedDataParallel<Linear> ddp(
          top, group, {.hook = GetParam()});
      Linear other_top(5, 1);
      {
        const torch::NoGradGuard no_grad;
        other_top->weight.copy_(top->weight);
        other_top->bias.copy_(top->bias);
      }
      const DistributedDataParallel<Linear> other(
          other_top, group, {.hook = GetParam()});
      const auto input = torch::randn({7, 10});

      other->forward(local->forward(input)).sum().backward();
      const Context context;
      autograd::backward(context, {ddp->forward(remote->forward(input)).sum()});
      const auto gradients = autograd::gradients(context);
      EXPECT_TRUE(
          torch::equal(gradients.of(top->weight), other_top->weight.grad()));
      EXPECT_TRUE(
          torch::equal(gradients.of(top->bias), other_top->bias.grad()));
      // Worker 0 serves the last module that was made there.
      if (group.rank() == group.size() - 1) {
        EXPECT_TRUE(torch::allclose(
            rpc::call<at::Tensor>("worker0", "weight_gradient", context.id()),
            local->weight.grad(),
            1e-5,
            1e-7));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Hooks,
    DdpComparisonProcesses,
    testing::Values("none", "int8", "powersgd:rank=1,start=0"),
    [](const auto& info) {
      return info.param.substr(0, info.param.find(':'));
    });

}  // namespace
}  // namespace gradwire::test
