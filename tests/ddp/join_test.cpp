#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "gradwire/ddp/join.h"
#include "gradwire/hook/registry.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"

namespace gradwire::test {
namespace {

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return second(torch::tanh(norm(first(x))));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 3));
  torch::nn::BatchNorm1d norm =
      register_module("norm", torch::nn::BatchNorm1d(3));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(3, 2));
  int calls = 0;
};
TORCH_MODULE(Net);

at::Tensor input(int rank, int step) {
  // Ranks are threads and share the default generator.
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * rank + step);
  return torch::randn({5, 4}, generator);
}

// The same on every rank.
template <class Module = Net>
Module make_net(int seed) {
  Module net;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(torch::randn(parameter.sizes(), generator));
  }
  return net;
}

using Ddp = DistributedDataParallel<Net>;

// Rank r has inputs[r] batches.
void train(const Ddp& ddp, const Group& group, const std::vector<int>& inputs) {
  torch::optim::SGD sgd(ddp->parameters(), 0.1);
  for (int step = 0; step < inputs.at(group.rank()); ++step) {
    sgd.zero_grad();
    ddp->forward(input(group.rank(), step)).square().sum().backward();
    sgd.step();
  }
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const auto& tensor : tensors) {
    parts.push_back(tensor.detach().flatten().to(torch::kDouble));
  }
  return torch::cat(parts);
}

at::Tensor state_of(Net net) {
  auto tensors = net->parameters();
  const auto buffers = net->buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return flat(tensors);
}

void expect_equal_on_all_ranks(const Group& group, const at::Tensor& tensor) {
  auto all = torch::empty({group.size() * tensor.numel()}, tensor.options());
  group.all_gather(all, tensor.contiguous()).wait();
  for (const auto& part : all.view({group.size(), -1}).unbind()) {
    EXPECT_TRUE(torch::equal(part, tensor));
  }
}

using Tensors = std::vector<at::Tensor>;

Tensors copies_of(const Tensors& tensors) {
  Tensors result;
  for (const auto& tensor : tensors) {
    result.push_back(tensor.detach().clone());
  }
  return result;
}

void copy_to(const Tensors& to, const Tensors& from) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i].copy_(from[i]);
  }
}

// The same in one process: ranks without input add nothing, and those with
// input start a step with the buffers of the highest of them.
at::Tensor reference(
    const std::vector<int>& inputs, bool divide_by_all, int seed) {
  Net net = make_net(seed);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::vector<Tensors> buffers(inputs.size(), copies_of(net->buffers()));
  for (int step = 0; step < std::ranges::max(inputs); ++step) {
    std::vector<std::size_t> active;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      if (step < inputs[rank]) {
        active.push_back(rank);
      }
    }
    sgd.zero_grad();
    const Tensors start = buffers[active.back()];
    for (const std::size_t rank : active) {
      copy_to(net->buffers(), start);
      net->forward(input(static_cast<int>(rank), step))
          .square()
          .sum()
          .backward();
      buffers[rank] = copies_of(net->buffers());
    }
    for (const auto& parameter : net->parameters()) {
      parameter.grad().div_(
          static_cast<double>(divide_by_all ? inputs.size() : active.size()));
    }
    sgd.step();
  }
  return state_of(net);
}

class JoinTest : public testing::TestWithParam<bool> {};

TEST_P(JoinTest, EqualsOneProcess) {
  for (const auto& inputs : std::vector<std::vector<int>>{
           {3, 1}, {1, 3}, {0, 2}, {2, 0, 4}, {5, 5, 5}}) {
    run_threads(static_cast<int>(inputs.size()), [&](const Group& group) {
      const Ddp ddp(make_net(7), group);
      {
        const Join join({.divide_by_initial_world_size = GetParam()}, ddp);
        train(ddp, group, inputs);
      }
      const auto state = state_of(Net(ddp->module()));
      expect_equal_on_all_ranks(group, state);
      EXPECT_TRUE(
          torch::allclose(state, reference(inputs, GetParam(), 7), 1e-4, 1e-6));
      // And goes on as before.
      EXPECT_EQ(ddp->module()->calls, inputs.at(group.rank()));
      train(ddp, group, std::vector<int>(inputs.size(), 1));
      expect_equal_on_all_ranks(group, flat(ddp->parameters()));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(DivideByInitial, JoinTest, testing::Bool());

// Ends with the same bits everywhere, whatever averages.
TEST(Join, WorksWithEveryHook) {
  for (const auto& hook : hooks()) {
    if (hook.result != HookInfo::Result::kAverage ||
        hook.wraps == HookInfo::Wraps::kAlways) {
      continue;
    }
    const std::string spec =
        hook.trial.empty() ? hook.name : concat(hook.name, ":", hook.trial);
    SCOPED_TRACE(spec);
    for (const bool by_all : {true, false}) {
      run_threads(3, [&](const Group& group) {
        const std::vector<int> inputs{1, 4, 2};
        const Ddp ddp(
            make_net(7), group, {.hook = spec, .bucket_cap_mb = 0.00005});
        {
          const Join join({.divide_by_initial_world_size = by_all}, ddp);
          train(ddp, group, inputs);
        }
        const auto state = state_of(Net(ddp->module()));
        expect_equal_on_all_ranks(group, state);
        EXPECT_TRUE(torch::isfinite(state).all().item<bool>());
        if (hook.tolerance == 0) {
          EXPECT_TRUE(
              torch::allclose(state, reference(inputs, by_all, 7), 1e-4, 1e-6));
        }
      });
    }
  }
}

TEST(Join, SeveralForwardsABackward) {
  run_threads(2, [](const Group& group) {
    const Ddp ddp(make_net(7), group, {.broadcast_buffers = false});
    torch::optim::SGD sgd(ddp->parameters(), 0.1);
    const Join join(ddp);
    for (int step = 0; step < 2 - group.rank(); ++step) {
      sgd.zero_grad();
      const auto one = ddp->forward(input(group.rank(), step));
      const auto two = ddp->forward(input(group.rank(), step + 10));
      (one.square().sum() + two.square().sum()).backward();
      sgd.step();
    }
  });
}

TEST(Join, AccumulatedGradientsAndUnusedParameters) {
  run_threads(2, [](const Group& group) {
    const Ddp ddp(make_net(7), group, {.find_unused_parameters = true});
    torch::optim::SGD sgd(ddp->parameters(), 0.1);
    {
      const Join join(ddp);
      for (int step = 0; step < 3 * (1 - group.rank()); ++step) {
        sgd.zero_grad();
        {
          const auto local = ddp->no_sync();
          ddp->forward(input(group.rank(), step)).sum().backward();
        }
        ddp->forward(input(group.rank(), step + 10)).sum().backward();
        sgd.step();
      }
    }
    expect_equal_on_all_ranks(group, flat(ddp->parameters()));
  });
}

TEST(Join, StaticGraph) {
  for (const int first : {0, 1, 3}) {
    run_threads(2, [&](const Group& group) {
      const Ddp ddp(make_net(7), group, {.static_graph = true});
      {
        const Join join(ddp);
        train(ddp, group, {first, 3});
      }
      expect_equal_on_all_ranks(group, flat(ddp->parameters()));
      if (first == 0) {
        EXPECT_ERROR(
            Error,
            ddp->forward(input(0, 0)),
            "with static_graph every rank must have input in the first "
            "iteration",
            group.rank() == 0 ? "this one had none" : "another one had none");
      }
    });
  }
}

// Two models, used in another order by the ranks that have input.
TEST(Join, SeveralDdps) {
  run_threads(3, [](const Group& group) {
    const Ddp one(make_net(7), group);
    const Ddp two(make_net(7), group, {.hook = "int8"});
    torch::optim::SGD sgd(one->parameters(), 0.1);
    sgd.add_parameters(two->parameters());
    {
      const Join join(one, two);
      for (int step = 0; step < 2 * group.rank(); ++step) {
        sgd.zero_grad();
        const auto x = input(group.rank(), step);
        (one->forward(x).sum() + two->forward(x).square().sum()).backward();
        sgd.step();
      }
    }
    expect_equal_on_all_ranks(group, flat(one->parameters()));
    expect_equal_on_all_ranks(group, flat(two->parameters()));
  });
}

struct RowsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& ids) {
    return bag(ids);
  }
  torch::nn::Embedding bag = register_module(
      "bag",
      torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)));
};
TORCH_MODULE(Rows);

TEST(Join, SparseGradients) {
  for (const char* hook : {"none", "allreduce", "int8:sparse=pass"}) {
    for (const int first : {0, 2}) {
      run_threads(2, [&](const Group& group) {
        const DistributedDataParallel<Rows> ddp(
            make_net<Rows>(7), group, {.hook = hook});
        auto expected = ddp->parameters()[0].detach().clone();
        torch::optim::SGD sgd(ddp->parameters(), 1.0);
        {
          const Join join(ddp);
          for (int step = 0; step < (group.rank() == 0 ? first : 3); ++step) {
            sgd.zero_grad();
            const auto ids =
                torch::tensor({step, group.rank() + 3}, torch::kLong);
            ddp->forward(ids).sum().backward();
            sgd.step();
          }
        }
        for (int rank = 0; rank < 2; ++rank) {
          for (int step = 0; step < (rank == 0 ? first : 3); ++step) {
            expected[step] -= 0.5;
            expected[rank + 3] -= 0.5;
          }
        }
        EXPECT_TRUE(torch::allclose(ddp->parameters()[0], expected)) << hook;
      });
    }
  }
}

TEST(Join, EarlyTerminationIsAnErrorOnEveryRankWhereAsked) {
  run_threads(3, [](const Group& group) {
    const Ddp one(make_net(7), group);
    const Ddp two(make_net(7), group);
    const auto work = [&] {
      Join join({.throw_on_early_termination = true}, one, two);
      for (int step = 0; step < (group.rank() == 1 ? 1 : 3); ++step) {
        const auto x = input(group.rank(), step);
        (one->forward(x).sum() + two->forward(x).sum()).backward();
      }
      join.finish();
    };
    if (group.rank() == 1) {
      EXPECT_ERROR(
          Error,
          work(),
          "rank 1 has no more input while 2 of 3 ranks have, and "
          "throw_on_early_termination is set");
    } else {
      EXPECT_ERROR(
          Error,
          work(),
          "1 of 3 ranks have no more input, and throw_on_early_termination is "
          "set");
    }
    // Nothing is lost: the models go on together.
    train(one, group, {1, 1, 1});
    expect_equal_on_all_ranks(group, flat(one->parameters()));
  });
}

TEST(Join, RanksThatDoDifferentThingsAreTold) {
  run_threads(2, [](const Group& group) {
    const Ddp ddp(make_net(7), group);
    Join join(ddp);
    auto loss = ddp->forward(input(0, 0)).sum();
    if (group.rank() == 0) {
      EXPECT_ERROR(
          Error,
          loss.backward(),
          "ranks in a Join do different things: rank 0 begins a backward, rank "
          "1 a forward");
    } else {
      EXPECT_ERROR(
          Error,
          ddp->forward(input(0, 1)),
          "ranks in a Join do different things: rank 0 begins a backward, rank "
          "1 a forward");
    }
    join.finish();
    EXPECT_ERROR(Error, join.finish(), "the Join is finished already");
  });
}

// Values that were loaded lie in other memory than at construction.
TEST(Join, LoadedParametersEndAlike) {
  run_threads(2, [](const Group& group) {
    Ddp ddp(make_net(7), group);
    std::stringstream file;
    torch::save(make_net(8), file);
    torch::load(ddp, file);
    {
      const Join join(ddp);
      train(ddp, group, {1, 3});
    }
    expect_equal_on_all_ranks(group, flat(ddp->parameters()));
  });
}

TEST(Join, ABackwardThatLacksGradientsIsAnErrorNotAHang) {
  run_threads(2, [](const Group& group) {
    const Ddp ddp(make_net(7), group);
    const auto work = [&] {
      Join join(ddp);
      for (int step = 0; step < 2; ++step) {
        ddp->forward(input(group.rank(), step));
        ddp->module()->first(input(group.rank(), step)).sum().backward();
      }
      join.finish();
    };
    EXPECT_ERROR(
        Error,
        work(),
        "the last backward did not finish: 4 of 6 parameters got no gradient");
  });
}

// A hook that fails on all ranks at the same bucket costs a step, also when one
// of them has no input.
TEST(Join, GoesOnAfterAFailureOfTheHook) {
  for (const int inputs : {0, 2}) {
    run_threads(2, [&](const Group& group) {
      int calls = 0;
      const Ddp ddp(make_net(7), group, {.hook = [&, group](Bucket& bucket) {
                      if (++calls == 2) {
                        fail("test", "the second bucket of all");
                      }
                      return group.all_reduce(bucket.buffer());
                    }});
      torch::optim::SGD sgd(ddp->parameters(), 0.1);
      {
        const Join join(ddp);
        for (int step = 0; step < (group.rank() == 0 ? inputs : 4); ++step) {
          sgd.zero_grad();
          auto loss = ddp->forward(input(group.rank(), step)).square().sum();
          if (step == 1) {
            EXPECT_ERROR(Error, loss.backward(), "the second bucket of all");
          } else {
            loss.backward();
            sgd.step();
          }
        }
      }
      expect_equal_on_all_ranks(group, flat(ddp->parameters()));
    });
  }
}

TEST(Join, WhatRanksWithoutInputCannotDoIsRefused) {
  run_threads(2, [](const Group& group) {
    const Ddp one(make_net(7), group);
    const Ddp two(make_net(7), group);
    {
      const Join join(one);
      EXPECT_ERROR(
          Error,
          one->set_hook("int8"),
          "set_hook was called inside of a Join, expected it before or after");
      EXPECT_ERROR(
          Error,
          one->save_hook_state("/tmp/nowhere"),
          "save_hook_state was called inside of a Join");
      EXPECT_ERROR(
          Error, const Join again(one), "a DDP can be in one Join at a time");
      EXPECT_ERROR(Error, Join(two, two), "a DDP can be in one Join at a time");
    }
    one->set_hook("int8");
    EXPECT_ERROR(
        Error,
        group.rank() == 0 ? Join(one, two).finish() : Join(two, one).finish(),
        "ranks do not agree on Join: DDP is '");
  });
}

TEST(Join, StepsOfOthersAreNotCountedAsOnesOwn) {
  run_threads(2, [](const Group& group) {
    const Ddp ddp(make_net(7), group);
    train(ddp, group, {3, 3});
    const auto before = ddp->stats().sent_last_step.total();
    {
      const Join join(ddp);
      train(ddp, group, {0, 3});
    }
    train(ddp, group, {1, 1});
    EXPECT_EQ(ddp->stats().sent_last_step.total(), before);
  });
}

TEST(Join, OptionsMustAgree) {
  run_threads(2, [](const Group& group) {
    const Ddp ddp(make_net(7), group);
    EXPECT_ERROR(
        Error,
        Join({.divide_by_initial_world_size = group.rank() == 0}, ddp),
        "ranks do not agree on Join: divide_by_initial_world_size is '1' on "
        "rank 0 but '0' on rank 1");
  });
}

TEST(Join, RanksThatWaitLongWarn) {
  struct Lines : c10::WarningHandler {
    void process(const c10::Warning& warning) override {
      const std::lock_guard lock(mutex);
      text += warning.msg();
    }
    std::mutex mutex;
    std::string text;
  } lines;
  run_threads(2, [&](const Group& group) {
    const c10::WarningUtils::WarningHandlerGuard guard(&lines);
    const Ddp ddp(make_net(7), group);
    const Join join(ddp);
    const auto local = ddp->no_sync();
    for (int step = 0; step < 1001 * group.rank(); ++step) {
      ddp->forward(input(0, 0));
    }
  });
  EXPECT_NE(
      lines.text.find("rank 0 has had no input for 1000 forwards"),
      std::string::npos)
      << lines.text;
}

}  // namespace
}  // namespace gradwire::test
