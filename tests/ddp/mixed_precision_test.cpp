// Mixed precision: types and numbers, with every option of a DDP.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "tests/ddp/mixed_net.h"
#include "tests/support/allocations.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::kBf16;
using test::kLocal;
using test::mixed_input;
using test::mixed_loss;
using test::MixedNet;
using test::run_threads;

// The same without a DDP: a second module in bf16, gradients carried over to
// the masters by hand, summed in the order of ranks.
class ByHand {
 public:
  ByHand() {
    narrow_->to(torch::kBFloat16);
  }
  MixedNet& masters() {
    return masters_;
  }
  // Adds to the gradients of the masters.
  void backward(const at::Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < masters_->parameters().size(); ++i) {
        narrow_->parameters()[i].copy_(masters_->parameters()[i]);
      }
    }
    narrow_->zero_grad();
    mixed_loss(narrow_->forward(x.to(torch::kBFloat16))).backward();
    for (std::size_t i = 0; i < masters_->parameters().size(); ++i) {
      auto& gradient = masters_->parameters()[i].mutable_grad();
      const auto more = narrow_->parameters()[i].grad().to(torch::kFloat);
      gradient = gradient.defined() ? gradient + more : more;
    }
  }
  void average(const Group& group) {
    for (auto& parameter : masters_->parameters()) {
      auto mean = torch::zeros_like(parameter.grad());
      for (const auto& part : test::gather(group, parameter.grad())) {
        mean += part / group.size();
      }
      parameter.mutable_grad() = mean;
    }
  }

 private:
  MixedNet masters_;
  MixedNet narrow_;
};

void expect_same_bits(MixedNet& a, MixedNet& b, bool gradients) {
  const auto x = a->parameters();
  const auto y = b->parameters();
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_TRUE(test::same_bits(x[i], y[i])) << "parameter " << i;
    EXPECT_TRUE(!gradients || test::same_bits(x[i].grad(), y[i].grad()))
        << "gradient " << i;
  }
}

struct MixedCase {
  const char* name;
  DistributedDataParallelOptions options;
};

std::vector<MixedCase> mixed_cases() {
  return {
      {"plain", {.precision = kBf16}},
      {"hook", {.hook = "allreduce", .precision = kBf16}},
      {"view", {.gradient_as_bucket_view = true, .precision = kBf16}},
      {"static",
       {.hook = "allreduce", .static_graph = true, .precision = kBf16}},
      {"unused", {.find_unused_parameters = true, .precision = kBf16}}};
}

TEST(MixedPrecision, BitsAreThoseOfCopiesAndMastersByHand) {
  for (const int world : {1, 2, 4}) {
    run_threads(
        world,
        [](const Group& group) {
          for (const auto& [name, options] : mixed_cases()) {
            SCOPED_TRACE(name);
            MixedNet net;
            auto ddp = DistributedDataParallel(net, group, options);
            ByHand reference;
            torch::optim::SGD sgd(
                ddp->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
            torch::optim::SGD reference_sgd(
                reference.masters()->parameters(),
                torch::optim::SGDOptions(0.1).momentum(0.9));
            for (int step = 0; step < 4; ++step) {
              sgd.zero_grad();
              reference_sgd.zero_grad();
              const auto x = mixed_input(group, step);
              mixed_loss(ddp->forward(x)).backward();
              reference.backward(x);
              reference.average(group);
              expect_same_bits(net, reference.masters(), true);
              sgd.step();
              reference_sgd.step();
            }
            expect_same_bits(net, reference.masters(), false);
            EXPECT_EQ(net->weight, torch::kBFloat16);
          }
        },
        kLocal);
  }
}

TEST(MixedPrecision, NoSyncAddsUpInFullPrecision) {
  run_threads(
      2,
      [](const Group& group) {
        MixedNet net;
        auto ddp = DistributedDataParallel(net, group, {.precision = kBf16});
        ByHand reference;
        for (int micro = 0; micro < 3; ++micro) {
          const auto x = mixed_input(group, micro);
          reference.backward(x);
          if (micro < 2) {
            const auto guard = ddp->no_sync();
            mixed_loss(ddp->forward(x)).backward();
            test::expect_masters(*net);
          } else {
            mixed_loss(ddp->forward(x)).backward();
          }
        }
        reference.average(group);
        expect_same_bits(net, reference.masters(), true);
      },
      kLocal);
}

// Several graphs at a time, each of which keeps the parameters themselves.
TEST(MixedPrecision, ForwardsMayComeBeforeTheBackwards) {
  run_threads(
      1,
      [](const Group& group) {
        MixedNet net;
        auto ddp = DistributedDataParallel(net, group, {.precision = kBf16});
        ByHand reference;
        for (int i = 0; i < 2; ++i) {
          reference.backward(mixed_input(group, i));
        }
        for (const bool together : {false, true}) {
          ddp->zero_grad();
          const auto guard = ddp->no_sync();
          const auto a = mixed_loss(ddp->forward(mixed_input(group, 0)));
          const auto b = mixed_loss(ddp->forward(mixed_input(group, 1)));
          test::expect_masters(*net);
          if (together) {
            (a + b).backward();
          } else {
            a.backward({}, /*retain_graph=*/true);
            a.backward();
            ddp->zero_grad();
            b.backward();
            mixed_loss(ddp->forward(mixed_input(group, 0))).backward();
          }
          test::expect_masters(*net);
          for (std::size_t i = 0; i < net->parameters().size(); ++i) {
            EXPECT_TRUE(torch::equal(
                net->parameters()[i].grad(),
                reference.masters()->parameters()[i].grad()));
          }
        }
      },
      kLocal);
}

// PyTorch's test of its native mixed precision,
// _test_ddp_native_mixed_precision of distributed_test: fp16 for everything.
struct ReferenceMixedImpl : torch::nn::Module {
  ReferenceMixedImpl() {
    test::fill_parameters(*this, 8);
    buffer = register_buffer("buffer", test::random_tensor({1, 2}, 9));
  }
  at::Tensor forward(const at::Tensor& x) {
    for (const auto& parameter : parameters()) {
      EXPECT_EQ(parameter.scalar_type(), torch::kHalf);
    }
    EXPECT_EQ(buffer.scalar_type(), torch::kHalf);
    EXPECT_EQ(x.scalar_type(), torch::kHalf);
    return m(x) + p;
  }
  torch::nn::Linear m = register_module("m", torch::nn::Linear(1, 5));
  at::Tensor p = register_parameter("p", torch::zeros({1}));
  at::Tensor unused = register_parameter("unused", torch::zeros({2}));
  at::Tensor buffer;
};
TORCH_MODULE(ReferenceMixed);

TEST(MixedPrecision, ReferenceNativeMixedPrecision) {
  const MixedPrecision half{
      .parameters = at::kHalf, .reduction = at::kHalf, .buffers = at::kHalf};
  run_threads(2, [&](const Group& group) {
    for (const bool view : {false, true}) {
      for (const bool to_none : {false, true}) {
        ReferenceMixed net;
        auto ddp = DistributedDataParallel(
            net,
            group,
            {.find_unused_parameters = true,
             .gradient_as_bucket_view = view,
             .precision = half});
        for (int step = 0; step < 3; ++step) {
          ddp->zero_grad(to_none);
          const auto x = torch::full({3, 1}, 0.5 + group.rank());
          const auto output = ddp->forward(x);
          EXPECT_EQ(output.scalar_type(), torch::kHalf);
          output.sum().backward();
          test::expect_masters(*net);
          EXPECT_TRUE(test::same_on_all_ranks(group, net->m->weight.grad()));
          EXPECT_EQ(net->m->weight.grad()[0][0].item<float>(), 3);
          EXPECT_EQ(net->p.grad()[0].item<float>(), 15);
        }
      }
    }
  });
}

struct ParameterKindsImpl : torch::nn::Module {
  ParameterKindsImpl() {
    test::fill_parameters(*this, 5);
    frozen.requires_grad_(false);
    const torch::NoGradGuard no_grad;
    strided->weight.set_data(
        strided->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor forward(const at::Tensor& ids) {
    for (const auto& each : {embed->weight, tied, frozen, wide}) {
      EXPECT_EQ(each.scalar_type(), torch::kBFloat16);
    }
    EXPECT_EQ(strided->weight.stride(1), 1);
    EXPECT_EQ(ignored.scalar_type(), torch::kFloat);
    EXPECT_EQ(complex.scalar_type(), torch::kComplexFloat);
    EXPECT_EQ(ids.scalar_type(), torch::kLong);
    auto x = embed(ids).matmul(tied).matmul(tied) * frozen * wide;
    x = strided(x.view({1, 4, 2, 2})).flatten() * torch::abs(complex);
    return x + ignored;
  }
  torch::nn::Embedding embed = register_module(
      "embed",
      torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 4).sparse(true)));
  at::Tensor tied = register_parameter("tied", torch::zeros({4, 4}));
  at::Tensor frozen = register_parameter("frozen", torch::zeros({4}));
  at::Tensor wide =
      register_parameter("wide", torch::zeros({4}, torch::kDouble));
  at::Tensor complex =
      register_parameter("complex", torch::zeros({1}, torch::kComplexFloat));
  at::Tensor ignored = register_parameter("ignored", torch::zeros({1}));
  torch::nn::Conv2d strided =
      register_module("strided", torch::nn::Conv2d(4, 2, 2));
};
TORCH_MODULE(ParameterKinds);

TEST(MixedPrecision, EveryKindOfParameter) {
  run_threads(2, [](const Group& group) {
    ParameterKinds net;
    auto ddp = DistributedDataParallel(
        net, group, {.ignore = {"ignored"}, .precision = kBf16});
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      const auto ids = torch::tensor({group.rank(), 2, 3, 3});
      (mixed_loss(ddp->forward(ids)) * (1 + group.rank())).backward();
      for (const auto& item : net->named_parameters()) {
        const auto type = item.key() == "wide"      ? torch::kDouble
                          : item.key() == "complex" ? torch::kComplexFloat
                                                    : torch::kFloat;
        EXPECT_EQ(item.value().scalar_type(), type) << item.key();
        if (item.key() == "frozen") {
          continue;
        }
        const auto gradient = item.value().grad().to_dense();
        EXPECT_EQ(gradient.scalar_type(), type) << item.key();
        EXPECT_EQ(
            test::same_on_all_ranks(group, torch::abs(gradient)),
            item.key() != "ignored")
            << item.key();
      }
      EXPECT_EQ(net->strided->weight.stride(1), 1);
      EXPECT_EQ(net->strided->weight.grad().stride(1), 1);
    }
  });
}

// Autograd's cast of a gradient is the one more.
TEST(MixedPrecision, NothingAsLargeAsAParameterIsAllocatedAfterWarmUp) {
  run_threads(2, [](const Group& group) {
    constexpr int kSize = 1024;
    torch::nn::Linear bare(kSize, kSize);
    bare->to(torch::kBFloat16);
    torch::nn::Linear net(kSize, kSize);
    auto ddp = DistributedDataParallel(net, group, {.precision = kBf16});
    const auto x = torch::ones({1, kSize}, torch::kBFloat16);
    const auto step = [&](auto& module) {
      module->zero_grad(/*set_to_none=*/false);
      module->forward(x).sum().backward();
    };
    const auto evaluate = [&](auto& module) {
      const torch::NoGradGuard no_grad;
      module->forward(x);
    };
    for (int i = 0; i < 3; ++i) {
      step(bare);
      step(ddp);
    }
    EXPECT_EQ(
        test::large_allocations_of([&] { evaluate(ddp); }),
        test::large_allocations_of([&] { evaluate(bare); }));
    EXPECT_EQ(
        test::large_allocations_of([&] { step(ddp); }),
        test::large_allocations_of([&] { step(bare); }) + 1);
  });
}

}  // namespace
}  // namespace gradwire
