// Parameters that get no gradient, found through outputs of every kind.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "gradwire/ddp/ddp.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace user {

struct Output {
  at::Tensor main;
  at::Tensor side;
};
template <class Visit>
void visit_tensors(Output& output, Visit&& visit) {
  visit(output.main);
  visit(output.side);
}

}  // namespace user

namespace gradwire {
namespace {

using test::run_threads;

// Two branches whose results come back in the shape that T says.
template <class T>
struct Branches : torch::nn::Module {
  Branches() {
    left = register_module("left", torch::nn::Linear(2, 2));
    right = register_module("right", torch::nn::Linear(2, 2));
    test::fill_parameters(*this, 1);
  }
  T forward(const at::Tensor& x, bool use_right, std::unique_ptr<int> token) {
    EXPECT_EQ(*token, 5);  // arguments arrive as they were sent, moved ones too
    const auto a = left->forward(x);
    const auto b = use_right ? right->forward(x) : at::Tensor();
    return make(a, b);
  }
  static T make(const at::Tensor& a, const at::Tensor& b);
  torch::nn::Linear left{nullptr};
  torch::nn::Linear right{nullptr};
};

using Vector = std::vector<at::Tensor>;
using Tuple = std::tuple<at::Tensor, std::optional<at::Tensor>>;
using Map = std::map<std::string, at::Tensor>;

template <>
Vector Branches<Vector>::make(const at::Tensor& a, const at::Tensor& b) {
  return b.defined() ? Vector{a, b} : Vector{a};
}
template <>
Tuple Branches<Tuple>::make(const at::Tensor& a, const at::Tensor& b) {
  return {a, b.defined() ? std::optional(b) : std::nullopt};
}
template <>
Map Branches<Map>::make(const at::Tensor& a, const at::Tensor& b) {
  return b.defined() ? Map{{"a", a}, {"b", b}} : Map{{"a", a}};
}
template <>
user::Output Branches<user::Output>::make(
    const at::Tensor& a, const at::Tensor& b) {
  return {a, b};
}

at::Tensor main_of(const Vector& v) {
  return v.at(0);
}
at::Tensor main_of(const Tuple& t) {
  return std::get<0>(t);
}
at::Tensor main_of(const Map& m) {
  return m.at("a");
}
at::Tensor main_of(const user::Output& o) {
  return o.main;
}

template <class T>
class OutputKinds : public testing::Test {};
using Kinds = testing::Types<Vector, Tuple, Map, user::Output>;
TYPED_TEST_SUITE(OutputKinds, Kinds);

// The right branch is computed in even steps only, and never used in the loss:
// the search must see through the output to know what is coming.
TYPED_TEST(OutputKinds, UnusedParametersAreFoundThroughTheOutput) {
  run_threads(2, [](const Group& group) {
    auto net = std::make_shared<Branches<TypeParam>>();
    auto ddp =
        DistributedDataParallel(net, group, {.find_unused_parameters = true});
    for (int step = 0; step < 4; ++step) {
      ddp->zero_grad();
      const auto x = torch::full({1, 2}, group.rank() + 1.0);
      const auto output =
          ddp->forward(x, step % 2 == 0, std::make_unique<int>(5));
      main_of(output).sum().backward();
      EXPECT_EQ(net->left->weight.grad()[0][0].template item<float>(), 1.5);
      EXPECT_FALSE(net->right->weight.grad().defined());
    }
    EXPECT_EQ(ddp->stats().steps, 4);
  });
}

// Unused on one rank, used on another: everybody gets the average.
TEST(DdpUnused, ParametersUnusedOnSomeRanks) {
  for (const char* hook : {"none", "allreduce"}) {
    run_threads(2, [&](const Group& group) {
      auto net = std::make_shared<Branches<Vector>>();
      auto ddp = DistributedDataParallel(
          net, group, {.hook = hook, .find_unused_parameters = true});
      const bool mine = group.rank() == 1;
      const auto out =
          ddp->forward(torch::ones({1, 2}), mine, std::make_unique<int>(5));
      (mine ? out[0].sum() + out[1].sum() : out[0].sum()).backward();
      EXPECT_EQ(net->right->weight.grad()[0][0].item<float>(), 0.5);
      EXPECT_EQ(net->left->weight.grad()[0][0].item<float>(), 1.0);
    });
  }
}

TEST(DdpUnused, StaticGraphWithAnUnusedParameter) {
  for (const char* hook : {"none", "allreduce"}) {
    run_threads(2, [&](const Group& group) {
      auto net = std::make_shared<Branches<Vector>>();
      auto ddp = DistributedDataParallel(
          net, group, {.hook = hook, .static_graph = true});
      for (int step = 0; step < 4; ++step) {
        ddp->zero_grad();
        const auto x = torch::full({1, 2}, group.rank() + 1.0);
        const auto out = ddp->forward(x, false, std::make_unique<int>(5));
        out[0].sum().backward();
        EXPECT_EQ(net->left->weight.grad()[0][0].item<float>(), 1.5);
      }
    });
  }
}

}  // namespace
}  // namespace gradwire
