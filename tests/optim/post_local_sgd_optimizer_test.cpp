#include "gradwire/optim/post_local_sgd_optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "tests/optim/replicas.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"

namespace gradwire {
namespace {

using test::run_threads;
using test::without_sockets;

using Layer = std::shared_ptr<torch::nn::LinearImpl>;

constexpr int kStart = 2;
constexpr int kPeriod = 3;

Layer make_layer() {
  auto layer = std::make_shared<torch::nn::LinearImpl>(5, 3);
  test::fill_parameters(*layer, 11);
  return layer;
}

at::Tensor loss_of(torch::nn::LinearImpl& layer, int step, int rank) {
  return layer.forward(test::random_tensor({4, 5}, 60 + 10 * step + rank))
      .square()
      .sum();
}

// The same training without any of our code: each replica by itself.
struct PlainReplicas {
  explicit PlainReplicas(int world) {
    for (int rank = 0; rank < world; ++rank) {
      layers.push_back(make_layer());
      optimizers.push_back(std::make_unique<torch::optim::SGD>(
          layers.back()->parameters(),
          torch::optim::SGDOptions(0.05).momentum(0.9)));
    }
  }

  void step(int number) {
    for (std::size_t rank = 0; rank < layers.size(); ++rank) {
      layers[rank]->zero_grad();
      loss_of(*layers[rank], number, static_cast<int>(rank)).backward();
    }
    if (number < kStart) {
      average([](const at::Tensor& parameter) { return parameter.grad(); });
    }
    for (auto& optimizer : optimizers) {
      optimizer->step();
    }
    if (number >= kStart && (number - kStart) % kPeriod == 0) {
      average([](const at::Tensor& parameter) { return parameter.detach(); });
    }
  }

  template <class Choose>
  void average(const Choose& choose) {
    for (std::size_t i = 0; i < layers[0]->parameters().size(); ++i) {
      at::Tensor sum;
      for (const Layer& layer : layers) {
        const auto share = choose(layer->parameters()[i]) *
                           (1.0 / static_cast<double>(layers.size()));
        sum = sum.defined() ? sum + share : share;
      }
      for (const Layer& layer : layers) {
        choose(layer->parameters()[i]).copy_(sum);
      }
    }
  }

  std::vector<Layer> layers;
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
};

struct Trainer {
  explicit Trainer(const Group& group)
      : ddp(make_layer(),
            group,
            {.hook = concat("post_local_sgd:start=", kStart, ",subgroup=1")}),
        sgd(ddp->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)),
        averager(group, tensors_of(ddp), {.period = kPeriod, .warmup = kStart}),
        optimizer(sgd, averager, ddp->hook()),
        rank(group.rank()) {}

  void step(int number) {
    optimizer.zero_grad();
    const auto input = test::random_tensor({4, 5}, 60 + 10 * number + rank);
    ddp->forward(input).square().sum().backward();
    optimizer.step();
  }

  DistributedDataParallel<Layer> ddp;
  torch::optim::SGD sgd;
  PeriodicModelAverager averager;
  PostLocalSGDOptimizer optimizer;
  int rank;
};

TEST(PostLocalSGDOptimizer, IsPlainTrainingAndAveragesToTheBit) {
  for (const int world : {2, 4}) {
    run_threads(
        world,
        [&](const Group& group) {
          Trainer trainer(group);
          PlainReplicas plain(world);
          for (int step = 0; step < 9; ++step) {
            trainer.step(step);
            plain.step(step);
            const auto& expected =
                plain.layers[static_cast<std::size_t>(group.rank())];
            for (std::size_t i = 0; i < 2; ++i) {
              EXPECT_TRUE(test::same_bits(
                  trainer.ddp->parameters()[i], expected->parameters()[i]))
                  << step << " " << i;
            }
          }
          EXPECT_EQ(trainer.averager.stats().averages, 3);
        },
        without_sockets());
  }
}

// The closure is the inner optimizer's.
TEST(PostLocalSGDOptimizer, PassesTheClosureOn) {
  run_threads(
      2,
      [](const Group& group) {
        const auto layer = make_layer();
        torch::optim::SGD sgd(layer->parameters(), 0.1);
        PeriodicModelAverager averager(group, tensors_of(layer), {});
        PostLocalSGDOptimizer optimizer(sgd, averager);
        const auto loss = optimizer.step([&] {
          optimizer.zero_grad();
          auto value = loss_of(*layer, 0, group.rank());
          value.backward();
          return value;
        });
        EXPECT_GT(loss.item<float>(), 0);
        EXPECT_EQ(optimizer.averager().step(), 1);
        EXPECT_TRUE(test::same_on_all_ranks(group, layer->weight));
      },
      without_sockets());
}

TEST(PostLocalSGDOptimizer, GoesOnWhereItWasSaved) {
  const test::TemporaryFolder folder;
  run_threads(
      2,
      [&](const Group& group) {
        Trainer trainer(group);
        for (int step = 0; step < 4; ++step) {
          trainer.step(step);
        }
        // What SGD remembers is not in it: none here.
        trainer.sgd.state().clear();
        trainer.optimizer.save(folder.path());
        trainer.ddp->save_hook_state(folder.path());
        Trainer resumed(group);
        resumed.optimizer.load(folder.path());
        resumed.ddp->load_hook_state(folder.path());
        for (int step = 4; step < 9; ++step) {
          trainer.step(step);
          resumed.step(step);
          EXPECT_TRUE(test::same_bits(
              resumed.ddp->parameters()[0], trainer.ddp->parameters()[0]))
              << step;
        }
      },
      without_sockets());
}

TEST(PostLocalSGDOptimizer, AWarmupThatIsNotTheHooksStartIsAnError) {
  run_threads(
      2,
      [](const Group& group) {
        const auto layer = make_layer();
        torch::optim::SGD sgd(layer->parameters(), 0.1);
        PeriodicModelAverager averager(group, tensors_of(layer), {.warmup = 5});
        const auto with = [&](const std::string& hook) {
          PostLocalSGDOptimizer(sgd, averager, hook);
        };
        with("post_local_sgd:start=5");
        with("bf16(post_local_sgd(int8):start=5,subgroup=1)");
        with("noop");
        EXPECT_ERROR(
            Error,
            with("post_local_sgd:start=4"),
            "hook 'post_local_sgd:start=4' goes local after 4 steps but the "
            "averager begins after 5, expected the same number");
        EXPECT_ERROR(
            Error,
            with("int8"),
            "hook 'int8' averages all gradients in every step, expected "
            "post_local_sgd:start=5");
        EXPECT_ERROR(Error, with("none"), "hook 'none' averages all");
      },
      without_sockets());
}

}  // namespace
}  // namespace gradwire
