// Nothing that goes wrong in between loses a master: exceptions, graphs that
// are dropped or outlive their DDP, files that are written and read.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "gradwire/ddp/ddp.h"
#include "tests/ddp/mixed_net.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::expect_masters;
using test::kBf16;
using test::kLocal;
using test::mixed_input;
using test::mixed_loss;
using test::MixedNet;
using test::run_threads;

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const auto& tensor : tensors) {
    copies.push_back(tensor.detach().clone());
  }
  return copies;
}

void expect_values(MixedNet& net, const std::vector<at::Tensor>& expected) {
  expect_masters(*net);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(test::same_bits(net->parameters()[i], expected[i]));
  }
}

// Fails in forward or in backward, when it is told to.
struct Faulty : torch::autograd::Function<Faulty> {
  static at::Tensor forward(
      torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("backward failed on purpose");
  }
};

struct FaultyNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const auto features = net->conv(x);
    if (in_forward) {
      throw std::runtime_error("forward failed on purpose");
    }
    // The last layer has its gradient when this fails, the first one has not.
    const auto middle = in_backward ? Faulty::apply(features) : features;
    return net->fc(torch::tanh(middle).flatten(1));
  }
  MixedNet net = register_module("net", MixedNet());
  bool in_forward = false;
  bool in_backward = false;
};
TORCH_MODULE(FaultyNet);

TEST(Masters, AreBackAfterAnException) {
  run_threads(
      2,
      [](const Group& group) {
        FaultyNet net;
        auto ddp = DistributedDataParallel(net, group, {.precision = kBf16});
        const auto before = copies_of(net->net->parameters());
        const auto x = mixed_input(group, 0);
        net->in_forward = true;
        EXPECT_ERROR(
            std::runtime_error, ddp->forward(x), "forward failed on purpose");
        expect_values(net->net, before);
        net->in_forward = false;
        net->in_backward = true;
        {
          const auto guard = ddp->no_sync();
          auto loss = mixed_loss(ddp->forward(x));
          expect_values(net->net, before);
          EXPECT_ERROR(
              std::runtime_error,
              loss.backward(),
              "backward failed on purpose");
          expect_values(net->net, before);
        }
        net->in_backward = false;
        ddp->zero_grad();
        mixed_loss(ddp->forward(x)).backward();
        expect_values(net->net, before);
        for (const auto& parameter : net->parameters()) {
          EXPECT_TRUE(test::same_on_all_ranks(group, parameter.grad()));
        }
      },
      kLocal);
}

TEST(Masters, AreBackWhenAHookFails) {
  run_threads(2, [](const Group& group) {
    MixedNet net;
    auto ddp = DistributedDataParallel(
        net,
        group,
        {.hook = [](Bucket&) -> Future { fail("hook", "no hook today"); },
         .precision = kBf16});
    const auto before = copies_of(net->parameters());
    auto loss = mixed_loss(ddp->forward(mixed_input(group, 0)));
    EXPECT_ERROR(Error, loss.backward(), "no hook today");
    expect_values(net, before);
    ddp->set_hook("allreduce");
    ddp->zero_grad();
    mixed_loss(ddp->forward(mixed_input(group, 0))).backward();
    EXPECT_TRUE(test::same_on_all_ranks(group, net->fc->weight.grad()));
  });
}

TEST(Masters, AreWhatFilesHoldAtAnyTime) {
  run_threads(
      2,
      [](const Group& group) {
        MixedNet net;
        auto ddp = DistributedDataParallel(net, group, {.precision = kBf16});
        torch::optim::SGD sgd(ddp->parameters(), 0.1);
        const auto before = copies_of(net->parameters());
        auto loss = mixed_loss(ddp->forward(mixed_input(group, 0)));
        std::stringstream file;
        torch::save(ddp, file);
        MixedNet bare;
        torch::load(bare, file);
        expect_values(bare, before);
        loss.backward();
        sgd.step();
        // Loading exchanges the memory of parameters.
        std::stringstream again;
        torch::save(bare, again);
        torch::load(ddp, again);
        expect_values(net, before);
        sgd.zero_grad();
        mixed_loss(ddp->forward(mixed_input(group, 0))).backward();
        expect_values(net, before);
        EXPECT_TRUE(test::same_on_all_ranks(group, net->conv->weight.grad()));
      },
      kLocal);
}

TEST(Masters, AForwardWithoutABackwardLeavesThem) {
  run_threads(
      2,
      [](const Group& group) {
        MixedNet net;
        auto ddp = DistributedDataParallel(net, group, {.precision = kBf16});
        const auto before = copies_of(net->parameters());
        const auto x = mixed_input(group, 0);
        at::Tensor in_inference;
        {
          const c10::InferenceMode inference;
          in_inference = ddp->forward(x);
          EXPECT_EQ(net->weight, torch::kBFloat16);
        }
        expect_values(net, before);
        {
          const torch::NoGradGuard no_grad;
          const auto output = ddp->forward(x);
          EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
          EXPECT_TRUE(torch::equal(output, in_inference));
          EXPECT_EQ(net->weight, torch::kBFloat16);
        }
        expect_values(net, before);
        mixed_loss(ddp->forward(x)).backward();
        expect_values(net, before);
        EXPECT_TRUE(test::same_on_all_ranks(group, net->fc->weight.grad()));
      },
      kLocal);
}

TEST(Masters, AGraphMayOutliveItsDdp) {
  run_threads(
      1,
      [](const Group& group) {
        MixedNet net;
        at::Tensor loss;
        {
          auto ddp = DistributedDataParallel(net, group, {.precision = kBf16});
          const auto guard = ddp->no_sync();
          loss = mixed_loss(ddp->forward(mixed_input(group, 0)));
        }
        const auto before = copies_of(net->parameters());
        loss.backward();
        expect_values(net, before);
        EXPECT_TRUE(net->conv->weight.grad().defined());
        // The module by itself computes as it always did.
        EXPECT_EQ(
            net->forward(mixed_input(group, 0)).scalar_type(), torch::kFloat);
      },
      kLocal);
}

// A discriminator and a generator share a layer, say: in one backward each DDP
// finds the parameter of the other in use.
TEST(Masters, TwoDdpsMayShareParameters) {
  struct User : torch::nn::Module {
    explicit User(MixedNet shared) {
      net = register_module("net", std::move(shared));
    }
    at::Tensor forward(const at::Tensor& x) {
      return net(x);
    }
    MixedNet net{nullptr};
  };
  for (const auto other : {at::kBFloat16, at::kHalf}) {
    run_threads(
        1,
        [&](const Group& group) {
          MixedNet net;
          auto a = DistributedDataParallel(
              std::make_shared<User>(net), group, {.precision = kBf16});
          auto b = DistributedDataParallel(
              std::make_shared<User>(net),
              group,
              {.precision = {.parameters = other}});
          const auto before = copies_of(net->parameters());
          const auto x = mixed_input(group, 0);
          const auto no_sync_a = a->no_sync();
          const auto no_sync_b = b->no_sync();
          mixed_loss(a->forward(x)).backward();
          mixed_loss(b->forward(x)).backward();
          expect_values(net, before);
          if (other == at::kBFloat16) {
            (mixed_loss(a->forward(x)) + mixed_loss(b->forward(x))).backward();
            expect_values(net, before);
          }
        },
        kLocal);
  }
}

struct NormNetImpl : torch::nn::Module {
  NormNetImpl() {
    test::fill_parameters(*this, 6);
  }
  at::Tensor forward(const at::Tensor& x) {
    types = {norm->running_mean.scalar_type(), count.scalar_type()};
    return norm(fc(x));
  }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(4, 3));
  torch::nn::BatchNorm1d norm =
      register_module("norm", torch::nn::BatchNorm1d(3));
  at::Tensor count = register_buffer("count", torch::zeros({1}, torch::kLong));
  std::vector<at::ScalarType> types;
};
TORCH_MODULE(NormNet);

TEST(Masters, BuffersTakeWhatForwardWrites) {
  using Types = std::vector<at::ScalarType>;
  run_threads(2, [](const Group& group) {
    NormNet net;
    NormNet narrow;
    narrow->to(torch::kBFloat16);
    auto ddp = DistributedDataParallel(net, group, {.precision = kBf16});
    const auto& mean = net->norm->running_mean;
    for (int step = 0; step < 3; ++step) {
      const auto x = test::random_tensor({5, 4}, 10 * group.rank() + step);
      mixed_loss(ddp->forward(x)).backward();
      narrow->forward(x.to(torch::kBFloat16));
      EXPECT_EQ(net->types, (Types{torch::kBFloat16, torch::kLong}));
      EXPECT_EQ(mean.scalar_type(), torch::kFloat);
      EXPECT_FALSE(test::same_on_all_ranks(group, mean));
      if (group.rank() == 0) {  // an averaged forward starts with its buffers
        EXPECT_TRUE(
            torch::equal(mean, narrow->norm->running_mean.to(torch::kFloat)));
      }
    }
  });
}

TEST(Masters, BuffersThatNobodyWritesToKeepTheirDigits) {
  run_threads(
      2,
      [](const Group& group) {
        NormNet bare;
        bare->norm->running_mean.fill_(0.1);  // no bf16 is 0.1
        std::stringstream file;
        torch::save(bare, file);
        NormNet net;
        auto ddp = DistributedDataParallel(net, group, {.precision = kBf16});
        torch::load(ddp, file);
        ddp->eval();
        for (int step = 0; step < 2; ++step) {
          ddp->zero_grad();
          mixed_loss(ddp->forward(torch::ones({2, 4}))).backward();
          EXPECT_TRUE(test::same_bits(
              net->norm->running_mean, bare->norm->running_mean));
        }
        std::stringstream again;
        torch::save(ddp, again);
        torch::load(bare, again);
        EXPECT_EQ(bare->norm->running_mean[0].item<float>(), 0.1f);
      },
      kLocal);
}

TEST(Masters, BuffersMayStayInFullPrecision) {
  struct Scaled : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      EXPECT_EQ(scale.scalar_type(), torch::kFloat);
      return fc(x) * scale.to(x.scalar_type());
    }
    torch::nn::Linear fc = register_module("fc", torch::nn::Linear(2, 2));
    at::Tensor scale = register_buffer("scale", torch::full({1}, 0.1));
  };
  run_threads(
      2,
      [](const Group& group) {
        auto ddp = DistributedDataParallel(
            std::make_shared<Scaled>(),
            group,
            {.precision = {
                 .parameters = at::kBFloat16, .buffers = at::kFloat}});
        mixed_loss(ddp->forward(torch::ones({1, 2}))).backward();
        EXPECT_EQ(ddp->module()->scale.item<float>(), 0.1f);
      },
      kLocal);
}

}  // namespace
}  // namespace gradwire
