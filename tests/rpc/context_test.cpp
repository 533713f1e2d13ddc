#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/rpc/context.h"
#include "gradwire/rpc/rpc.h"
#include "tests/rpc/workers.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

using autograd::Context;
using Table = std::map<std::string, at::Tensor>;

at::Tensor layer_weight() {
  static const at::Tensor leaf =
      (torch::arange(1.0, 7.0).view({2, 3}) / 7).requires_grad_();
  return leaf;
}

// Each worker has the same weight; gradients by context.
void register_layers() {
  rpc::register_function(
      "multiply", [](const at::Tensor& x) { return x.matmul(layer_weight()); });
  // A -> B -> C: the inner product is made on the next worker.
  rpc::register_function("multiply_there", [](const at::Tensor& x) {
    const auto inner = rpc::call<at::Tensor>("worker2", "multiply", x);
    return inner.matmul(layer_weight().t());
  });
  rpc::register_function("spread", [](const std::vector<at::Tensor>& list) {
    const Table table{
        {"sum", list[0] + list[1]}, {"product", list[0] * list[1]}};
    return std::make_tuple(table, list[0].matmul(layer_weight()));
  });
  rpc::register_function("gradient", [](autograd::ContextId context) {
    return autograd::gradients(context).of(layer_weight());
  });
}

TEST(ContextProcesses, GradientsFlowThroughACall) {
  once<register_layers>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    const auto x = torch::ones({4, 2}).requires_grad_();
    const auto loss = [&](const at::Tensor& y) { return y.square().sum(); };
    const Context context;
    autograd::backward(
        context, {loss(rpc::call<at::Tensor>("worker1", "multiply", x))});
    const auto local = x.detach().clone().requires_grad_();
    const auto w = layer_weight().detach().clone().requires_grad_();
    loss(local.matmul(w)).backward();
    EXPECT_TRUE(
        torch::allclose(autograd::gradients(context).of(x), local.grad()));
    EXPECT_TRUE(torch::allclose(
        rpc::call<at::Tensor>("worker1", "gradient", context.id()), w.grad()));
    EXPECT_FALSE(x.grad().defined());
    EXPECT_EQ(autograd::gradients(context).size(), 1u);
    EXPECT_FALSE(autograd::gradients(context).of(layer_weight()).defined());
  });
}

TEST(ContextProcesses, GradientsFlowThroughNestedCalls) {
  once<register_layers>();
  run_workers(3, [](const Group& group) {
    if (group.rank() != 0) {
      return;
    }
    const auto x = torch::ones({4, 2}).requires_grad_();
    const Context context;
    const auto y = rpc::call<at::Tensor>("worker1", "multiply_there", x);
    autograd::backward(context, {y.square().sum()});
    const auto local = x.detach().clone().requires_grad_();
    const auto w1 = layer_weight().detach().clone().requires_grad_();
    const auto w2 = layer_weight().detach().clone().requires_grad_();
    local.matmul(w2).matmul(w1.t()).square().sum().backward();
    EXPECT_TRUE(
        torch::allclose(autograd::gradients(context).of(x), local.grad()));
    EXPECT_TRUE(torch::allclose(
        rpc::call<at::Tensor>("worker1", "gradient", context.id()), w1.grad()));
    EXPECT_TRUE(torch::allclose(
        rpc::call<at::Tensor>("worker2", "gradient", context.id()), w2.grad()));
  });
}

TEST(ContextProcesses, GradientsFlowThroughListsTuplesAndMaps) {
  once<register_layers>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    const auto a = torch::full({1, 2}, 2.0).requires_grad_();
    const auto b = torch::full({1, 2}, 3.0).requires_grad_();
    const Context context;
    const auto [table, y] = rpc::call<std::tuple<Table, at::Tensor>>(
        "worker1", "spread", std::vector{a, b});
    const auto loss =
        table.at("sum").sum() + 2 * table.at("product").sum() + y.sum();
    autograd::backward(context, {loss});
    const auto found = autograd::gradients(context);
    EXPECT_TRUE(torch::allclose(
        found.of(a), 1 + 2 * b.detach() + layer_weight().detach().sum(1)));
    EXPECT_TRUE(torch::allclose(found.of(b), 1 + 2 * a.detach()));
  });
}

TEST(ContextProcesses, SeveralRootsAndCallsAddUp) {
  once<register_layers>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    const auto x = torch::ones({1, 2}).requires_grad_();
    const Context context;
    const auto y = rpc::call<at::Tensor>("worker1", "multiply", x);
    const auto z = rpc::call<at::Tensor>("worker1", "multiply", x);
    autograd::backward(context, {y.sum(), (2 * z).sum()});
    EXPECT_TRUE(torch::allclose(
        autograd::gradients(context).of(x),
        3 * layer_weight().detach().sum(1).view({1, 2})));
  });
}

TEST(ContextProcesses, ContextsEnd) {
  once<register_layers>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    autograd::ContextId id = 0;
    {
      const Context context;
      id = context.id();
      EXPECT_ERROR(
          Error,
          Context(),
          concat("this thread is in context ", id, " already"));
      const auto x = torch::ones({1, 2}).requires_grad_();
      const auto y = rpc::call<at::Tensor>("worker1", "multiply", x).sum();
      EXPECT_ERROR(
          Error,
          autograd::backward(context, {torch::ones(2).requires_grad_()}),
          "backward got a root of 2 elements");
      EXPECT_ERROR(
          Error,
          autograd::backward(context, {torch::ones({})}),
          "backward got a root that does not require a gradient");
      EXPECT_ERROR(
          Error, autograd::backward(context, {}), "backward got no roots");
      autograd::backward(context, {y});
    }
    EXPECT_ERROR(
        Error,
        autograd::gradients(id),
        concat("context ", id, " is not known on worker 'worker0'"));
    // The other worker is told, in its own time.
    for (bool known = true; known;) {
      try {
        rpc::call<at::Tensor>("worker1", "gradient", id);
      } catch (const rpc::RemoteError& e) {
        known = false;
        EXPECT_NE(
            std::string(e.what()).find(
                concat("context ", id, " is not known on worker 'worker1'")),
            std::string::npos)
            << e.what();
      }
    }
    const Context next;
    EXPECT_NE(next.id(), id);
  });
}

}  // namespace
}  // namespace gradwire::test
