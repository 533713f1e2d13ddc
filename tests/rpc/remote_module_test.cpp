#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/rpc/context.h"
#include "gradwire/rpc/remote_module.h"
#include "tests/rpc/workers.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

using rpc::RemoteModule;

struct NetImpl : torch::nn::Module {
  NetImpl(std::int64_t in, std::int64_t out) {
    if (in < 1) {
      throw std::invalid_argument("a Net needs an input");
    }
    linear = register_module("linear", torch::nn::Linear(in, out));
    norm = register_module("norm", torch::nn::BatchNorm1d(out));
  }
  at::Tensor forward(const at::Tensor& x) {
    return norm(linear(x));
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

void register_modules() {
  rpc::register_module<Net, std::int64_t, std::int64_t>("Net");
  rpc::register_module_factory<torch::nn::Linear>(
      "Linear", [](std::int64_t in, std::int64_t out, bool bias) {
        return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias))
            .ptr();
      });
  rpc::register_function(
      "forward_for", [](const RemoteModule<Net>& net, const at::Tensor& x) {
        return net.forward(x);
      });
}

TEST(RemoteModuleProcesses, ForwardStateAndParameters) {
  once<register_modules>();
  run_workers(3, [](const Group& group) {
    if (group.rank() != 0) {
      return;
    }
    const RemoteModule<Net> net("worker1/cpu", 3, 2);
    const auto x = torch::randn({5, 3});
    Net local(3, 2);
    std::map<std::string, at::Tensor> state;
    for (const auto& item : local->named_parameters()) {
      state.emplace(item.key(), item.value().detach());
    }
    for (const auto& item : local->named_buffers()) {
      state.emplace(item.key(), item.value());
    }
    net.load_state(state);
    EXPECT_TRUE(torch::equal(net.forward(x), local->forward(x)));
    EXPECT_TRUE(torch::equal(
        net.state().at("norm.running_mean"), local->norm->running_mean));
    EXPECT_TRUE(torch::equal(net.forward_async(x).wait(), local->forward(x)));
    net.eval();
    local->eval();
    EXPECT_TRUE(torch::equal(net.forward(x), local->forward(x)));
    // From a third worker.
    EXPECT_TRUE(torch::equal(
        rpc::call<at::Tensor>("worker2", "forward_for", net, x),
        local->forward(x)));
    const auto parameters = net.remote_parameters();
    ASSERT_EQ(parameters.size(), local->parameters().size());
    EXPECT_EQ(parameters[0].owner().name, "worker1");
    EXPECT_TRUE(torch::equal(parameters[0].fetch(), local->parameters()[0]));
  });
}

TEST(RemoteModuleProcesses, PlacesAreChecked) {
  once<register_modules>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    EXPECT_EQ(RemoteModule<Net>("worker1", 3, 2).remote().owner().id, 1);
    EXPECT_EQ(RemoteModule<Net>("rank:1/cpu", 3, 2).remote().owner().id, 1);
    EXPECT_ERROR(
        Error,
        RemoteModule<Net>("worker4/cpu", 3, 2),
        "there is no worker 'worker4', expected one of worker0, worker1");
    EXPECT_ERROR(
        Error,
        RemoteModule<Net>("rank:4/cpu", 3, 2),
        "there is no worker of rank '4' for 'rank:4/cpu', expected 0 to 1");
    EXPECT_ERROR(
        Error, RemoteModule<Net>("rank:/cpu", 3, 2), "no worker of rank ''");
    EXPECT_ERROR(
        rpc::RemoteError,
        RemoteModule<Net>("worker1/cpuu", 3, 2),
        "'Net.new' on worker 'worker1' failed: ",
        "cpuu");
    EXPECT_ERROR(
        rpc::RemoteError,
        RemoteModule<Net>("worker1/cpu", 0, 2),
        "'Net.new' on worker 'worker1' failed: a Net needs an input");
    EXPECT_ERROR(
        rpc::RemoteError,
        RemoteModule<Net>("worker1/cpu", 3, 2).forward(torch::ones({1, 4})),
        "'Net.forward' on worker 'worker1' failed: mat1 and mat2 shapes cannot "
        "be multiplied");
  });
}

TEST(RemoteModuleProcesses, StateThatDoesNotFitChangesNothing) {
  once<register_modules>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    const RemoteModule<torch::nn::Linear> linear("worker1", 2, 2, true);
    const auto before = linear.state();
    EXPECT_ERROR(
        rpc::RemoteError,
        linear.load_state({{"weight", torch::ones({2, 2})}}),
        "the state lacks 'bias'");
    EXPECT_ERROR(
        rpc::RemoteError,
        linear.load_state(
            {{"weight", torch::ones({2, 2})}, {"bias", torch::ones(3)}}),
        "'bias' has the shape [2], got [3]");
    auto more = before;
    more.emplace("scale", torch::ones(1));
    EXPECT_ERROR(
        rpc::RemoteError, linear.load_state(more), "the module has no 'scale'");
    EXPECT_TRUE(torch::equal(linear.state().at("weight"), before.at("weight")));
  });
}

}  // namespace
}  // namespace gradwire::test
