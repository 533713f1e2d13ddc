#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <sstream>

#include "gradwire/hook/registry.h"
#include "tests/ddp/join_net.h"
#include "tests/support/expect.h"
#include "tests/support/no_threads.h"

namespace gradwire::test {
namespace {

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

// Steps of others count: the next step has the same number everywhere.
TEST(Join, StepsHaveTheSameNumberOnAllRanks) {
  for (const char* hook : {"none", "int8"}) {
    run_threads(3, [&](const Group& group) {
      const Ddp ddp(make_net(7), group, {.hook = hook});
      {
        const Join join(ddp);
        train(ddp, group, {1, 4, 2});
      }
      train(ddp, group, {1, 1, 1});
      EXPECT_EQ(ddp->stats().last.number, 4) << hook;
    });
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

#ifdef GRADWIRE_TEST_NO_THREADS
// The others do not wait for the DDP that has none.
TEST(Join, WithoutAThreadForASecondDdp) {
  run_threads(2, [](const Group& group) {
    const Ddp one(make_net(7), group);
    const Ddp two(make_net(7), group);
    std::optional<Join> join;
    join.emplace(one, two);
    if (group.rank() == 0) {
      const NoThreads no_threads;
      EXPECT_ERROR(
          Error, join->finish(), "no thread for a DDP of the Join could be");
    } else {
      EXPECT_THROW(join->finish(), Error);
    }
  });
}
#endif

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

TEST(Join, StepsOfOthersAreNotCountedAsOnesOwn) {
  run_threads(2, [](const Group& group) {
    const Ddp ddp(make_net(7), group);
    train(ddp, group, {3, 3});
    const auto before = ddp->stats().last.sent.total();
    {
      const Join join(ddp);
      train(ddp, group, {0, 3});
    }
    train(ddp, group, {1, 1});
    EXPECT_EQ(ddp->stats().last.sent.total(), before);
  });
}

}  // namespace
}  // namespace gradwire::test
