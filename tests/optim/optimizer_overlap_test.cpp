// An overlapped optimizer does what the plain one does, to the bit.

#include "gradwire/optim/optimizer_overlap.h"

#include <torch/nn/utils/clip_grad.h>

#include "gradwire/ddp/join.h"
#include "tests/optim/overlap_twins.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"

namespace gradwire::test {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using VariedTwins = Twins<Varied>;

const RankOptions kLocal{.transport = "local"};

MakeOptimizer sgd() {
  return maker<SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}
MakeOptimizer adam() {
  return maker<Adam>(AdamOptions(0.01));
}

struct NamedOptimizer {
  std::string name;
  MakeOptimizer make;
};

std::vector<NamedOptimizer> optimizers() {
  using namespace torch::optim;
  return {
      {"SGD", sgd()},
      {"Adam", adam()},
      {"AdamW", maker<AdamW>(AdamWOptions(0.01).weight_decay(0.1))},
      {"Adagrad", maker<Adagrad>(AdagradOptions(0.05).lr_decay(0.1))},
      {"RMSprop",
       maker<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true))}};
}

auto loss_of(const Group& group, int step) {
  return [&group, step](VariedTwins::Ddp& ddp) {
    return ddp->forward(images(group.rank(), step)).square().sum();
  };
}

void train_twins(VariedTwins& twins, const Group& group, int steps = 4) {
  for (int step = 0; step < steps; ++step) {
    twins.step(loss_of(group, step));
  }
}

TEST(OptimizerOverlap, StepsLikeThePlainOptimizer) {
  for (const auto& [name, make] : optimizers()) {
    for (const char* hook :
         {"none", "allreduce", "int8", "powersgd:rank=1,start=1", "fp16"}) {
      for (const int world : {1, 2, 4}) {
        SCOPED_TRACE(concat(name, " ", hook, " ", world));
        run_threads(
            world,
            [&](const Group& group) {
              VariedTwins twins(group, hook, make);
              train_twins(twins, group);
              twins.expect_same();
              EXPECT_TRUE(
                  same_on_all_ranks(group, twins.net->last->weight.detach()));
              EXPECT_EQ((*twins.ddp)->stats().steps, 4);
              EXPECT_EQ(
                  (*twins.ddp)->hook(),
                  concat("optimizer_overlap(", check_hook_spec(hook), ")"));
            },
            kLocal);
      }
    }
  }
}

TEST(OptimizerOverlap, WithEveryOptionOfTheDdp) {
  for (const char* hook : {"none", "int8"}) {
    for (const bool is_static : {false, true}) {
      for (const bool view : {false, true}) {
        SCOPED_TRACE(concat(hook, " ", is_static, " ", view));
        run_threads(
            2,
            [&](const Group& group) {
              VariedTwins twins(
                  group,
                  hook,
                  adam(),
                  {.static_graph = is_static, .gradient_as_bucket_view = view});
              train_twins(twins, group);
              twins.expect_same();
            },
            kLocal);
      }
    }
  }
}

// Options are read at every step, each group's own.
TEST(OptimizerOverlap, GroupsAndSchedules) {
  run_threads(
      2,
      [](const Group& group) {
        VariedTwins twins(group, "int8", adam(), {}, {}, [](Varied& net) {
          return Groups{
              {net.square, net.complex},
              net.conv->parameters(),
              net.last->parameters()};
        });
        for (int step = 0; step < 4; ++step) {
          for (const auto& optimizer :
               {twins.optimizer.get(), twins.plain_optimizer.get()}) {
            double rate = 0.01 / (1 + step);
            for (auto& each : optimizer->param_groups()) {
              each.options().set_lr(rate);
              rate /= 2;
            }
          }
          twins.step(loss_of(group, step));
        }
        twins.expect_same();
        EXPECT_EQ(twins.optimizer->param_groups()[1].params().size(), 2u);
      },
      kLocal);
}

// Nothing steps in a local backward; the next step takes what has come
// together.
TEST(OptimizerOverlap, AccumulatedGradients) {
  for (const bool view : {false, true}) {
    run_threads(
        2,
        [&](const Group& group) {
          VariedTwins twins(
              group, "int8", sgd(), {.gradient_as_bucket_view = view});
          for (int step = 0; step < 4; ++step) {
            twins.step([&](VariedTwins::Ddp& ddp) {
              const auto before = ddp->module()->square.detach().clone();
              {
                const auto local = ddp->no_sync();
                loss_of(group, 10 + step)(ddp).backward();
              }
              EXPECT_TRUE(same_bits(ddp->module()->square, before));
              return loss_of(group, step)(ddp);
            });
          }
          twins.expect_same();
        },
        kLocal);
  }
}

TEST(OptimizerOverlap, ClipsAndFrees) {
  for (const char* hook : {"none", "int8", "fp16"}) {
    run_threads(
        2,
        [&](const Group& group) {
          const auto split = [](Varied& net) {
            return Groups{{net.square}, net.last->parameters()};
          };
          VariedTwins twins(
              group,
              hook,
              sgd(),
              {},
              {.gradients = OverlapOptions::Gradients::kFree,
               .clip_value = 0.02},
              split);
          twins.before_step = [&](const auto&) {
            for (const auto& each : split(*twins.plain_net)) {
              torch::nn::utils::clip_grad_value_(each, 0.02);
            }
          };
          train_twins(twins, group);
          twins.expect_same(/*gradients=*/false);
          EXPECT_FALSE(twins.net->square.grad().defined());
          // Of no optimizer: with its gradient, and as it was.
          EXPECT_TRUE(twins.net->complex.grad().defined());
          EXPECT_EQ(
              (*twins.ddp)->hook(),
              concat(
                  "optimizer_overlap:clip_value=0.02,gradients=free(",
                  hook,
                  ")"));
        },
        kLocal);
  }
}

// A parameter that nobody has used does not step, one that another rank has
// used does.
TEST(OptimizerOverlap, UnusedParameters) {
  for (const char* hook : {"none", "int8"}) {
    for (const bool view : {false, true}) {
      for (const bool clips : {false, true}) {
        OverlapOptions overlap;
        if (clips) {
          overlap.clip_value = 0.01;
        }
        run_threads(
            2,
            [&](const Group& group) {
              // Torch does not clip complex gradients.
              const auto split = [&](Varied& net) {
                auto parameters = net.last->parameters();
                parameters.push_back(clips ? net.square : net.complex);
                return Groups{parameters};
              };
              VariedTwins twins(
                  group,
                  hook,
                  sgd(),
                  {.find_unused_parameters = true,
                   .gradient_as_bucket_view = view},
                  overlap,
                  split);
              if (clips) {
                twins.before_step = [&](const auto&) {
                  for (const auto& each : split(*twins.plain_net)) {
                    torch::nn::utils::clip_grad_value_(each, 0.01);
                  }
                };
              }
              for (int step = 0; step < 8; ++step) {
                const bool left = (step >> (2 * group.rank())) % 2 == 0;
                const bool right = step % 4 != 1 + group.rank() && step != 7;
                (*twins.plain)->zero_grad();
                (*twins.ddp)->zero_grad();
                twins.step([&](VariedTwins::Ddp& ddp) {
                  return ddp->forward(images(group.rank(), step), left, right)
                      .square()
                      .sum();
                });
                twins.expect_same();
              }
            },
            kLocal);
      }
    }
  }
}

struct SparseRows : torch::nn::Module {
  SparseRows() {
    fill_parameters(*this, 3);
  }
  at::Tensor forward(const at::Tensor& ids) {
    return linear(rows(ids));
  }
  torch::nn::Embedding rows = register_module(
      "rows",
      torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(2, 2));
};

TEST(OptimizerOverlap, SparseGradients) {
  for (const char* hook : {"none", "int8:sparse=pass"}) {
    run_threads(
        2,
        [&](const Group& group) {
          Twins<SparseRows> twins(group, hook, maker<SGD>(SGDOptions(0.1)));
          for (int step = 0; step < 3; ++step) {
            const auto ids =
                torch::tensor({step, group.rank() + 3}, torch::kLong);
            twins.step([&](auto& ddp) { return ddp->forward(ids).sum(); });
          }
          twins.expect_same();
        },
        kLocal);
  }
}

// The loss is multiplied, the step is as without; a rank's overflow costs all
// of them the step, and leaves everything as it was.
TEST(OptimizerOverlap, AllOrNothingUnderALossScale) {
  for (const char* hook : {"none", "int8"}) {
    run_threads(
        2,
        [&](const Group& group) {
          double scale = 8;
          VariedTwins twins(
              group,
              hook,
              adam(),
              {},
              {.scale = [&] { return scale; }, .all_or_nothing = true});
          for (int step = 0; step < 4; ++step) {
            if (step == 2) {
              const auto before = twins.net->square.detach().clone();
              twins.optimizer->zero_grad();
              auto loss = loss_of(group, step)(*twins.ddp);
              loss = loss * (group.rank() == 1 ? INFINITY : 1);
              loss.backward();
              EXPECT_TRUE(same_bits(twins.net->square, before));
              const auto stats = (*twins.ddp)->stats();
              EXPECT_EQ(stats.last.outcome, Step::Outcome::kNotFinite);
              EXPECT_EQ(stats.not_finite_steps, 1);
              scale = 4;
            }
            twins.step([&](VariedTwins::Ddp& ddp) {
              const auto loss = loss_of(group, step)(ddp);
              return &ddp == &*twins.ddp ? loss * scale : loss;
            });
            if (hook == std::string("none")) {
              twins.expect_same();
            }
          }
          EXPECT_TRUE(same_on_all_ranks(group, twins.net->square.detach()));
        },
        kLocal);
  }
}

// Ranks without input step, too: they end with the same parameters, and with
// the same state of the optimizer, so that all train on together.
void join_twins(
    VariedTwins& twins, const Group& group, bool by_all, bool finds) {
  const JoinOptions options{.divide_by_initial_world_size = by_all};
  const int inputs = std::vector<int>{1, 4, 2}.at(group.rank());
  for (auto* each : {&twins.plain, &twins.ddp}) {
    auto& ddp = **each;
    const Join join(options, ddp);
    for (int step = 0; step < inputs; ++step) {
      ddp->zero_grad();
      const auto x = images(group.rank(), step);
      ddp->forward(x, true, !finds || step == 1).square().sum().backward();
      if (each == &twins.plain) {
        twins.plain_optimizer->step();
      }
    }
  }
}

void expect_same_parameters(const Group& group, const torch::nn::Module& net) {
  for (const auto& parameter : net.parameters()) {
    const auto values = parameter.detach();
    EXPECT_TRUE(same_on_all_ranks(
        group, values.is_complex() ? torch::view_as_real(values) : values));
  }
}

TEST(OptimizerOverlap, UnderAJoin) {
  // Without a hook averages over fewer ranks are rounded in another way.
  const std::vector<std::pair<std::string, bool>> kinds{
      {"allreduce", true}, {"int8", true}, {"int8", false}};
  for (const auto& [hook, by_all] : kinds) {
    for (const bool finds : {true, false}) {
      for (const bool late : {true, false}) {
        SCOPED_TRACE(concat(hook, " ", by_all, " ", finds, " ", late));
        run_threads(
            3,
            [&](const Group& group) {
              VariedTwins twins(
                  group,
                  hook,
                  adam(),
                  {.find_unused_parameters = finds},
                  {.all_or_nothing = late});
              join_twins(twins, group, by_all, finds);
              twins.expect_same(/*gradients=*/false);
              twins.optimizer->zero_grad();
              loss_of(group, 9)(*twins.ddp).backward();
              expect_same_parameters(group, *twins.net);
            },
            kLocal);
      }
    }
  }
}

TEST(OptimizerOverlap, UnderAJoinOfAStaticGraph) {
  run_threads(2, [](const Group& group) {
    VariedTwins twins(group, "int8", adam(), {.static_graph = true});
    {
      const Join join(*twins.ddp);
      for (int step = 0; step < 1 + 2 * group.rank(); ++step) {
        twins.optimizer->zero_grad();
        (*twins.ddp)
            ->forward(images(group.rank(), step), false)
            .square()
            .sum()
            .backward();
      }
    }
    twins.optimizer->zero_grad();
    (*twins.ddp)->forward(images(group.rank(), 9), false).sum().backward();
    expect_same_parameters(group, *twins.net);
  });
}

// The optimizer's state stays its own, so both hooks go on with it.
TEST(OptimizerOverlap, IsExchangedForOtherHooks) {
  run_threads(
      2,
      [](const Group& group) {
        VariedTwins twins(group, "int8", adam());
        const std::vector<HookChoice> hooks{
            optimizer_overlap("int8", *twins.optimizer),
            "int8",
            optimizer_overlap("powersgd:rank=1,start=0", *twins.optimizer),
            "none"};
        const std::vector<std::string> plain{
            "int8", "int8", "powersgd:rank=1,start=0", "none"};
        for (std::size_t i = 0; i < hooks.size(); ++i) {
          (*twins.plain)->set_hook(plain[i]);
          (*twins.ddp)->set_hook(hooks[i]);
          for (int step = 0; step < 2; ++step) {
            twins.step(loss_of(group, 10 * i + step));
            if (i % 2 == 1) {
              twins.optimizer->step();
            }
          }
          twins.expect_same();
        }
      },
      kLocal);
}

TEST(OptimizerOverlap, PassesTheStateOfTheHookOn) {
  const TemporaryFolder folder;
  run_threads(
      2,
      [&](const Group& group) {
        const auto make = maker<SGD>(SGDOptions(0.1));
        VariedTwins one(group, "int4", make);
        VariedTwins two(group, "int4", make);
        train_twins(one, group, 3);
        (*one.ddp)->save_hook_state(folder.path());
        (*two.ddp)->load_hook_state(folder.path());
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < one.net->parameters().size(); ++i) {
          two.net->parameters()[i].copy_(one.net->parameters()[i]);
        }
        const torch::AutoGradMode grad(true);
        for (auto* each : {&one, &two}) {
          each->optimizer->zero_grad();
          loss_of(group, 5)(*each->ddp).backward();
        }
        EXPECT_TRUE(same_bits(one.net->square, two.net->square));
        EXPECT_TRUE(same_bits(one.net->conv->weight, two.net->conv->weight));
      },
      kLocal);
}

// Two optimizers, each with parameters of its own.
TEST(OptimizerOverlap, AroundAnother) {
  run_threads(
      2,
      [](const Group& group) {
        VariedTwins twins(group, "none", adam(), {}, {}, [](Varied& net) {
          return Groups{net.last->parameters()};
        });
        const auto rest = [](Varied& net) {
          return Groups{{net.square, net.complex}, net.conv->parameters()};
        };
        const auto plain = sgd()(rest(*twins.plain_net));
        const auto overlapped = sgd()(rest(*twins.net));
        (*twins.ddp)
            ->set_hook(optimizer_overlap(
                optimizer_overlap("none", *twins.optimizer), *overlapped));
        for (int step = 0; step < 3; ++step) {
          (*twins.plain)->zero_grad();
          (*twins.ddp)->zero_grad();
          twins.step(loss_of(group, step));
          plain->step();
        }
        twins.expect_same();
        EXPECT_EQ(
            (*twins.ddp)->hook(), "optimizer_overlap(optimizer_overlap(none))");
      },
      kLocal);
}

}  // namespace
}  // namespace gradwire::test
