#include "gradwire/ddp/inputs.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <span>

#include "gradwire/ddp/ddp.h"
#include "tests/ddp/mixed_net.h"
#include "tests/support/ranks.h"

namespace user {

struct Batch {
  at::Tensor image;
  at::Tensor label;
};
template <class Visit>
void visit_tensors(Batch& batch, Visit&& visit) {
  visit(batch.image);
  visit(batch.label);
}
struct Opaque {
  at::Tensor inside;
};

}  // namespace user

namespace gradwire {
namespace {

using detail::CastInput;
using detail::Input;
using detail::PassedInput;

template <class Arg>
constexpr bool kIsCast = std::is_same_v<Input<Arg>, CastInput<Arg>>;
template <class Arg>
constexpr bool kIsPassed = std::is_same_v<Input<Arg>, PassedInput<Arg>>;
using Tensors = std::vector<at::Tensor>;
using Hidden = std::optional<std::tuple<at::Tensor, at::Tensor>>;

static_assert(kIsCast<at::Tensor> && kIsCast<const at::Tensor&>);
static_assert(kIsCast<Tensors&> && kIsCast<std::array<at::Tensor, 2>>);
static_assert(kIsCast<const Hidden&>);
static_assert(kIsCast<std::map<std::string, Tensors>>);
static_assert(kIsCast<torch::OrderedDict<std::string, at::Tensor>&>);
static_assert(kIsCast<std::pair<int, at::Tensor>>);
static_assert(kIsCast<const user::Batch&>);
// Others' elements, and what nobody can look into.
static_assert(kIsPassed<at::TensorList> && kIsPassed<std::span<at::Tensor>>);
static_assert(kIsPassed<user::Opaque&>);
static_assert(kIsPassed<std::pair<at::Tensor, user::Opaque>>);
static_assert(kIsPassed<std::tuple<at::Tensor, std::vector<bool>>>);
static_assert(kIsPassed<std::unique_ptr<int>> && kIsPassed<const char (&)[3]>);
static_assert(kIsPassed<int> && kIsPassed<std::string&>);

struct TakesAllImpl : torch::nn::Module {
  at::Tensor forward(
      at::Tensor& x,
      const Tensors& list,
      Hidden hidden,
      user::Batch&& batch,
      std::unique_ptr<int> token,
      const std::string& text) {
    EXPECT_EQ(x.scalar_type(), expected);
    EXPECT_EQ(list.at(0).scalar_type(), expected);
    EXPECT_FALSE(list.at(1).defined());
    EXPECT_EQ(std::get<1>(*hidden).scalar_type(), expected);
    EXPECT_EQ(batch.image.scalar_type(), expected);
    EXPECT_EQ(batch.label.scalar_type(), torch::kLong);
    EXPECT_EQ(*token, 5);
    EXPECT_EQ(text, "as it is");
    return fc(x.to(fc->weight.scalar_type()));
  }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(2, 2));
  at::ScalarType expected = torch::kBFloat16;
};
TORCH_MODULE(TakesAll);

TEST(Inputs, FloatsAreCastWhereverTheyAre) {
  test::run_threads(1, [](const Group& group) {
    for (const bool cast : {true, false}) {
      TakesAll net;
      net->expected = cast ? torch::kBFloat16 : torch::kFloat;
      auto ddp = DistributedDataParallel(
          net,
          group,
          {.precision = {.parameters = at::kBFloat16, .cast_inputs = cast}});
      auto x = torch::ones({1, 2}, torch::requires_grad());
      const Tensors list{torch::ones({2}), at::Tensor()};
      ddp->forward(
             x,
             list,
             Hidden({torch::ones({1}), torch::ones({1})}),
             user::Batch{torch::ones({1}), torch::ones({1}, torch::kLong)},
             std::make_unique<int>(5),
             "as it is")
          .sum()
          .backward();
      // The caller's own are what they were, and get their gradients.
      EXPECT_EQ(x.scalar_type(), torch::kFloat);
      EXPECT_EQ(list[0].scalar_type(), torch::kFloat);
      EXPECT_EQ(x.grad().scalar_type(), torch::kFloat);
    }
  });
}

}  // namespace
}  // namespace gradwire
