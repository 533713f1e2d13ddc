// A sharded optimizer beside the same one by itself: bits, bytes, errors.

#include "gradwire/optim/zero.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "tests/optim/zero_case.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using test::copies_of;
using test::expect_same;
using test::give_gradients;
using test::mixed_parameters;
using test::run_threads;
using torch::optim::OptimizerParamGroup;

const test::RankOptions kZeroRanks{.transport = "local"};

// Every other parameter has options of its own.
test::ParamGroups two_groups(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> even;
  std::vector<at::Tensor> odd;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    (i % 2 == 0 ? even : odd).push_back(parameters[i]);
  }
  return {OptimizerParamGroup(even), OptimizerParamGroup(odd)};
}

TEST(Zero, StepsAsTheOptimizerByItself) {
  for (const auto& each : test::all_optimizers()) {
    for (const int world : {1, 2, 4}) {
      run_threads(
          world,
          [&](const Group& group) {
            const auto parameters = mixed_parameters();
            const auto expected = copies_of(parameters);
            ZeroRedundancyOptimizer zero(
                group, two_groups(parameters), each.sliced);
            const auto plain = each.plain(two_groups(expected));
            for (int step = 0; step < 4; ++step) {
              give_gradients(parameters, step);
              give_gradients(expected, step);
              // Schedules change options, and a parameter may be left out.
              for (torch::optim::Optimizer* optimizer :
                   {static_cast<torch::optim::Optimizer*>(&zero),
                    plain.get()}) {
                optimizer->param_groups()[1].options().set_lr(
                    0.02 / (1 + step));
                if (step == 1) {
                  auto& first = optimizer->param_groups()[0].params()[0];
                  first.mutable_grad() = at::Tensor();
                }
              }
              zero.step();
              plain->step();
            }
            expect_same(parameters, expected, each.name);
          },
          kZeroRanks);
    }
  }
}

TEST(Zero, StepsTypesThatTheOptimizerSteps) {
  for (const auto type : {at::kComplexFloat, at::kHalf, at::kBFloat16}) {
    run_threads(
        3,
        [&](const Group& group) {
          std::vector<at::Tensor> parameters{
              torch::zeros({40, 33}, type), torch::zeros({7}, type)};
          const auto expected = copies_of(parameters);
          const auto sgd = test::optimizer_case<torch::optim::SGD>(
              "SGD", torch::optim::SGDOptions(0.1).momentum(0.9));
          ZeroRedundancyOptimizer zero(group, parameters, sgd.sliced);
          const auto plain = sgd.plain({OptimizerParamGroup(expected)});
          for (int step = 0; step < 3; ++step) {
            give_gradients(parameters, step);
            give_gradients(expected, step);
            zero.step();
            plain->step();
          }
          expect_same(parameters, expected, c10::toString(type));
        },
        kZeroRanks);
  }
}

// With a DDP, tied weights, a scheduler and gradients in its buckets.
TEST(Zero, StepsWhatADdpTrains) {
  struct Tied : torch::nn::Module {
    Tied() {
      register_parameter("again", first->weight);
    }
    at::Tensor forward(const at::Tensor& x) {
      const auto hidden = torch::tanh(middle(torch::tanh(first(x))));
      return torch::mm(hidden, first->weight.t());
    }
    torch::nn::Linear first =
        register_module("first", torch::nn::Linear(40, 40));
    torch::nn::Linear middle =
        register_module("middle", torch::nn::Linear(40, 40));
  };
  for (const bool view : {false, true}) {
    run_threads(
        2,
        [&](const Group& group) {
          std::vector<std::vector<at::Tensor>> results;
          for (const bool sharded : {false, true}) {
            auto net = std::make_shared<Tied>();
            test::fill_parameters(*net, 7);
            DistributedDataParallel ddp(
                net, group, {.gradient_as_bucket_view = view});
            const auto adam = test::adam_case();
            std::unique_ptr<torch::optim::Optimizer> optimizer;
            if (sharded) {
              optimizer = std::make_unique<ZeroRedundancyOptimizer>(
                  group, ddp->parameters(), adam.sliced);
            } else {
              optimizer = adam.plain({OptimizerParamGroup(ddp->parameters())});
            }
            torch::optim::StepLR schedule(*optimizer, 2, 0.5);
            for (int step = 0; step < 4; ++step) {
              optimizer->zero_grad();
              const auto x =
                  test::random_tensor({5, 40}, 10 * step + group.rank());
              ddp->forward(x).square().sum().backward();
              optimizer->step();
              schedule.step();
            }
            results.push_back(ddp->parameters());
          }
          EXPECT_EQ(results[1].size(), 4U);
          expect_same(results[1], results[0], "tied");
        },
        kZeroRanks);
  }
}

TEST(Zero, TakesGradientsOfOtherStrides) {
  run_threads(
      2,
      [](const Group& group) {
        auto parameter =
            test::random_tensor({64, 30}, 1).set_requires_grad(true);
        auto expected = copies_of({parameter})[0];
        const auto sgd = test::sgd_case();
        ZeroRedundancyOptimizer zero(
            group, std::vector<at::Tensor>{parameter}, sgd.sliced);
        const auto plain =
            sgd.plain({OptimizerParamGroup(std::vector<at::Tensor>{expected})});
        const auto gradient = test::random_tensor({30, 64}, 2).t();
        parameter.mutable_grad() = gradient;
        expected.mutable_grad() = gradient.contiguous();
        zero.step();
        plain->step();
        EXPECT_TRUE(test::same_bits(parameter, expected));
      },
      kZeroRanks);
}

TEST(Zero, DealsOutTheState) {
  for (const int world : {2, 3, 4, 8}) {
    run_threads(
        world,
        [&](const Group& group) {
          torch::nn::Sequential net(
              torch::nn::Linear(784, 100),
              torch::nn::Linear(100, 100),
              torch::nn::Linear(100, 10));
          const auto adam = test::adam_case();
          ZeroRedundancyOptimizer zero(group, net->parameters(), adam.sliced);
          const auto plain =
              adam.plain({OptimizerParamGroup(net->parameters())});
          EXPECT_EQ(zero.stats().state_bytes, 0);
          give_gradients(net->parameters(), 1);
          zero.step();
          plain->step();
          std::int64_t all = 0;
          for (const auto& state : state_of(*plain).parameters) {
            all += state_bytes(state);
          }
          const auto stats = zero.stats();
          EXPECT_LE(stats.state_bytes * world, 1.05 * all) << world;
          EXPECT_EQ(stats.state_bytes, 3 * stats.parameter_bytes);
          EXPECT_EQ(stats.steps, 1);
          // Each of the others gets what this rank has stepped.
          EXPECT_EQ(stats.sent.total(), (world - 1) * stats.parameter_bytes);
        },
        kZeroRanks);
  }
}

TEST(Zero, StepsInSubgroups) {
  run_threads(
      4,
      [](const Group& world) {
        const int half = world.rank() / 2;
        const Group low = world.subgroup({0, 1});
        const Group high = world.subgroup({2, 3});
        const Group group = half == 0 ? low : high;
        const auto parameters = mixed_parameters();
        const auto expected = copies_of(parameters);
        const auto adam = test::adam_case();
        ZeroRedundancyOptimizer zero(group, parameters, adam.sliced);
        const auto plain = adam.plain({OptimizerParamGroup(expected)});
        for (int step = 0; step < 2; ++step) {
          give_gradients(parameters, step + 10 * half);
          give_gradients(expected, step + 10 * half);
          zero.step();
          plain->step();
        }
        expect_same(parameters, expected, "a subgroup");
      },
      kZeroRanks);
}

TEST(Zero, TakesMoreParameterGroups) {
  for (const auto& each : {test::adam_case(), test::sgd_case()}) {
    run_threads(
        2,
        [&](const Group& group) {
          const auto parameters = mixed_parameters();
          const auto expected = copies_of(parameters);
          const std::vector<at::Tensor> more{
              test::random_tensor({90, 90}, 8).set_requires_grad(true)};
          const auto expected_more = copies_of(more);
          ZeroRedundancyOptimizer zero(group, parameters, each.sliced);
          const auto plain = each.plain({OptimizerParamGroup(expected)});
          for (int step = 0; step < 4; ++step) {
            if (step == 2) {
              zero.add_param_group(OptimizerParamGroup(more));
              plain->add_param_group(OptimizerParamGroup(expected_more));
              zero.param_groups()[1].options().set_lr(0.5);
              plain->param_groups()[1].options().set_lr(0.5);
            }
            give_gradients(parameters, step);
            give_gradients(expected, step);
            give_gradients(more, step + 50);
            give_gradients(expected_more, step + 50);
            zero.step();
            plain->step();
          }
          expect_same(parameters, expected, each.name);
          expect_same(more, expected_more, each.name);
        },
        kZeroRanks);
  }
}

// Looks at all elements of a parameter, and is not known to anybody.
class NormedSgd : public torch::optim::Optimizer {
 public:
  NormedSgd(
      const std::vector<OptimizerParamGroup>& groups,
      torch::optim::SGDOptions defaults)
      : Optimizer(
            groups, std::make_unique<torch::optim::SGDOptions>(defaults)) {}
  at::Tensor step(LossClosure) override {
    const torch::NoGradGuard no_grad;
    for (const auto& group : param_groups_) {
      for (const auto& p : group.params()) {
        if (p.grad().defined()) {
          at::Tensor(p).sub_(p.grad() * (p.norm() / p.grad().norm()));
        }
      }
    }
    return {};
  }
};

TEST(Zero, LeavesParametersWholeOnRequest) {
  run_threads(
      3,
      [](const Group& group) {
        const auto parameters = mixed_parameters();
        const auto expected = copies_of(parameters);
        const auto normed = test::optimizer_case<NormedSgd>(
            "NormedSgd", torch::optim::SGDOptions(0.1));
        ZeroRedundancyOptimizer zero(
            group, parameters, normed.sliced, {.split = false});
        const auto plain = normed.plain({OptimizerParamGroup(expected)});
        for (int step = 0; step < 2; ++step) {
          give_gradients(parameters, step);
          give_gradients(expected, step);
          zero.step();
          plain->step();
        }
        expect_same(parameters, expected, "whole");
        EXPECT_EQ(zero.stats().state_bytes, 0);
        EXPECT_ERROR(
            Error, zero.consolidate(), "register_optimizer makes it known");
      },
      kZeroRanks);
}

// torch::load gives a parameter other memory.
TEST(Zero, FollowsParametersToOtherMemory) {
  for (const std::string codec : {"none", "bf16"}) {
    run_threads(
        2,
        [&](const Group& group) {
          auto parameter =
              test::random_tensor({100, 40}, 1).set_requires_grad(true);
          ZeroRedundancyOptimizer zero(
              group,
              std::vector<at::Tensor>{parameter},
              sliced<torch::optim::SGD>(torch::optim::SGDOptions(0.5)),
              {.parameters = codec});
          {
            const torch::NoGradGuard no_grad;
            parameter.set_(torch::ones({100, 40}));
          }
          parameter.mutable_grad() = torch::ones({100, 40});
          zero.step();
          EXPECT_TRUE(torch::equal(parameter, torch::full({100, 40}, 0.5)));
          // Or other values.
          {
            const torch::NoGradGuard no_grad;
            parameter.fill_(3);
          }
          zero.step();
          EXPECT_TRUE(torch::equal(parameter, torch::full({100, 40}, 2.5)));
          {
            const torch::NoGradGuard no_grad;
            parameter.set_(torch::ones({40, 100}));
          }
          EXPECT_ERROR(CommError, zero.step(), "parameter '0' has become one");
        },
        kZeroRanks);
  }
}

// Owners have what the optimizer by itself gives; what all ranks have lacks no
// more than an encoding of the last change loses.
TEST(Zero, SendsParametersCompressed) {
  struct Codec {
    std::string spec;
    double tolerance;
    double bytes;
  };
  const std::vector<Codec> codecs{
      {"int8", 1.0 / 127, 1.1}, {"bf16", 1.0 / 256, 2.1}};
  for (const auto& codec : codecs) {
    for (const int world : {2, 4}) {
      run_threads(
          world,
          [&](const Group& group) {
            std::vector<at::Tensor> parameters{
                test::random_tensor({100, 200}, 1),
                test::random_tensor({300}, 2)};
            const auto expected = copies_of(parameters);
            const double lr = 0.01;
            const auto adam = test::optimizer_case<torch::optim::Adam>(
                "Adam", torch::optim::AdamOptions(lr));
            ZeroRedundancyOptimizer zero(
                group, parameters, adam.sliced, {.parameters = codec.spec});
            const auto plain = adam.plain({OptimizerParamGroup(expected)});
            for (int step = 0; step < 6; ++step) {
              give_gradients(parameters, step);
              give_gradients(expected, step);
              zero.step();
              plain->step();
              for (std::size_t i = 0; i < parameters.size(); ++i) {
                const double error =
                    (parameters[i] - expected[i]).abs().max().item<double>();
                EXPECT_LE(error, 1.5 * lr * codec.tolerance) << codec.spec;
                EXPECT_GT(error, 0);
              }
            }
            for (const auto& parameter : parameters) {
              EXPECT_TRUE(test::same_on_all_ranks(group, parameter));
            }
            const auto stats = zero.stats();
            EXPECT_LE(
                stats.sent.total(),
                6 * (world - 1) * codec.bytes / 4 *
                    static_cast<double>(stats.parameter_bytes));
          },
          kZeroRanks);
    }
  }
}

TEST(Zero, SaysWhatItCannotStep) {
  run_threads(
      2,
      [](const Group& group) {
        using Tensors = std::vector<at::Tensor>;
        const auto sgd = test::sgd_case().sliced;
        const auto make = [&](const Tensors& parameters,
                              const ZeroOptions& options = {}) {
          ZeroRedundancyOptimizer zero(group, parameters, sgd, options);
        };
        const auto p = torch::zeros({4, 4});
        EXPECT_ERROR(Error, make({p, p}), "parameter '0' is there twice");
        EXPECT_ERROR(
            Error,
            make({p.slice(1, 0, 2)}, {.names = {{"half", p}}}),
            "parameter '0' is undefined, sparse or has holes");
        EXPECT_ERROR(
            Error,
            make({p.to_sparse()}),
            "expected one that is dense in memory");
        EXPECT_ERROR(
            Error,
            make({p.to(torch::kDouble)}, {.parameters = "int8"}),
            "is of Double, expected Float for parameters that travel as int8");
        EXPECT_ERROR(Error, make({p}, {.parameters = "int9"}), "int9");
        EXPECT_ERROR(
            Error,
            ZeroRedundancyOptimizer(
                group,
                Tensors{p},
                sliced<torch::optim::LBFGS>(torch::optim::LBFGSOptions(1))),
            "LBFGS looks at all parameters together");
        // What one rank finds reaches all.
        EXPECT_ERROR(
            Error,
            make({group.rank() == 0 ? p : p.to_sparse()}),
            "expected one that is dense in memory");
        EXPECT_ERROR(
            Error,
            make({group.rank() == 0 ? p : torch::zeros({5})}),
            "parameter '0'",
            "[4, 4]",
            "[5]");
        EXPECT_ERROR(Error, make({p}, {.split = group.rank() == 0}), "split");
      },
      kZeroRanks);
}

TEST(Zero, GoesOnAfterAnError) {
  run_threads(
      2,
      [](const Group& group) {
        std::vector<at::Tensor> parameters{torch::zeros({20, 20})};
        ZeroRedundancyOptimizer zero(
            group, parameters, test::sgd_case().sliced);
        const auto sparse = torch::ones({20, 20}).to_sparse();
        auto& gradient = parameters[0].mutable_grad();
        gradient = group.rank() == 1 ? sparse : torch::ones({20, 20});
        EXPECT_ERROR(Error, zero.step(), "gradient of parameter '0' is sparse");
        EXPECT_ERROR(
            Error,
            zero.add_param_group(OptimizerParamGroup(parameters)),
            "parameter '0' is there twice");
        EXPECT_EQ(zero.param_groups().size(), 1U);
        gradient = torch::ones({20, 20});
        zero.step();
        EXPECT_TRUE(test::same_on_all_ranks(group, parameters[0]));
        EXPECT_LT(parameters[0].max().item<float>(), 0);
        // The base class cannot know.
        static_cast<torch::optim::Optimizer&>(zero).add_param_group(
            OptimizerParamGroup(std::vector<at::Tensor>{torch::zeros({3})}));
        EXPECT_ERROR(CommError, zero.step(), "add_param_group adds more");
      },
      kZeroRanks);
}

TEST(Zero, NamesALostRank) {
  run_threads(
      3,
      [](const Group& group) {
        std::vector<at::Tensor> parameters{torch::zeros({40, 40})};
        ZeroRedundancyOptimizer zero(
            group, parameters, test::sgd_case().sliced);
        give_gradients(parameters, 1);
        zero.step();
        if (group.rank() == 2) {
          return;
        }
        const auto before = std::chrono::steady_clock::now();
        EXPECT_ERROR(CommError, zero.step(), "rank 2");
        EXPECT_LE(
            std::chrono::steady_clock::now() - before, std::chrono::seconds(8));
      },
      {.timeout = std::chrono::seconds(4)});
}

}  // namespace
}  // namespace gradwire
