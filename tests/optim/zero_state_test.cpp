// What is kept of a sharded optimizer: in files, in one piece, elsewhere.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "gradwire/optim/zero.h"
#include "tests/optim/zero_case.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using test::copies_of;
using test::expect_same;
using test::give_gradients;
using test::mixed_parameters;
using test::run_threads;
using test::TemporaryFolder;
using torch::optim::OptimizerParamGroup;

const test::RankOptions kStateRanks{.transport = "local"};

void step_from(
    torch::optim::Optimizer& optimizer,
    const std::vector<at::Tensor>& parameters,
    int first,
    int count) {
  for (int step = first; step < first + count; ++step) {
    give_gradients(parameters, step);
    optimizer.step();
  }
}

TEST(ZeroState, LoadsInAnyWorld) {
  for (const auto& each : test::all_optimizers()) {
    const auto expected = mixed_parameters();
    const auto plain = each.plain({OptimizerParamGroup(expected)});
    step_from(*plain, expected, 0, 2);
    const auto model = copies_of(expected);
    const TemporaryFolder folder;
    run_threads(
        4,
        [&](const Group& group) {
          const auto parameters = mixed_parameters();
          ZeroRedundancyOptimizer zero(group, parameters, each.sliced);
          step_from(zero, parameters, 0, 2);
          zero.save(folder.path());
        },
        kStateRanks);
    step_from(*plain, expected, 2, 2);
    for (const int world : {4, 2, 1}) {
      run_threads(
          world,
          [&](const Group& group) {
            const auto parameters = copies_of(model);
            ZeroRedundancyOptimizer zero(group, parameters, each.sliced);
            zero.load(folder.path());
            step_from(zero, parameters, 2, 2);
            expect_same(parameters, expected, each.name);
          },
          kStateRanks);
    }
  }
}

// What was not sent yet is part of the state.
TEST(ZeroState, OfCompressedParametersGoesOnWithTheSameBits) {
  const auto adam = test::optimizer_case<torch::optim::Adam>(
      "Adam", torch::optim::AdamOptions(0.01));
  const auto make = [] {
    return std::vector<at::Tensor>{
        test::random_tensor({90, 100}, 1), test::random_tensor({30}, 2)};
  };
  const TemporaryFolder folder;
  std::vector<at::Tensor> middle;
  std::vector<at::Tensor> expected;
  run_threads(
      2,
      [&](const Group& group) {
        const auto parameters = make();
        ZeroRedundancyOptimizer zero(
            group, parameters, adam.sliced, {.parameters = "int8"});
        step_from(zero, parameters, 0, 3);
        zero.save(folder.path());
        const auto now = copies_of(parameters);
        step_from(zero, parameters, 3, 2);
        if (group.rank() == 0) {
          middle = now;
          expected = copies_of(parameters);
        }
      },
      kStateRanks);
  run_threads(
      2,
      [&](const Group& group) {
        const auto parameters = copies_of(middle);
        ZeroRedundancyOptimizer zero(
            group, parameters, adam.sliced, {.parameters = "int8"});
        zero.load(folder.path());
        step_from(zero, parameters, 3, 2);
        expect_same(parameters, expected, "int8");
      },
      kStateRanks);
  // Where parameters travel as they are they become what owners had.
  const auto full = make();
  const auto plain = adam.plain({OptimizerParamGroup(full)});
  step_from(*plain, full, 0, 3);
  for (const int world : {1, 3}) {
    run_threads(
        world,
        [&](const Group& group) {
          const auto parameters = copies_of(middle);
          ZeroRedundancyOptimizer zero(group, parameters, adam.sliced);
          zero.load(folder.path());
          expect_same(parameters, full, "in full");
        },
        kStateRanks);
  }
}

TEST(ZeroState, IsThatOfTheOptimizerByItself) {
  for (const auto& each : test::all_optimizers()) {
    run_threads(
        3,
        [&](const Group& group) {
          const auto parameters = mixed_parameters();
          const auto expected = copies_of(parameters);
          ZeroRedundancyOptimizer zero(group, parameters, each.sliced);
          const auto plain = each.plain({OptimizerParamGroup(expected)});
          step_from(zero, parameters, 0, 2);
          step_from(*plain, expected, 0, 2);
          const auto whole = zero.consolidate(1);
          if (group.rank() != 1) {
            EXPECT_TRUE(whole.parameters.empty());
          } else {
            test::expect_same_state(whole, state_of(*plain));
            // Another one goes on with it.
            const auto again = each.plain({OptimizerParamGroup(parameters)});
            const auto before = copies_of(parameters);
            load_state(*again, whole);
            step_from(*again, parameters, 2, 1);
            test::ParamGroups others{OptimizerParamGroup(before)};
            const auto other = each.plain(others);
            load_state(*other, state_of(*plain));
            step_from(*other, before, 2, 1);
            expect_same(parameters, before, each.name);
          }
        },
        kStateRanks);
  }
}

TEST(ZeroState, ComesFromTheOptimizerByItself) {
  for (const auto& each : test::all_optimizers()) {
    run_threads(
        2,
        [&](const Group& group) {
          const auto expected = mixed_parameters();
          const auto plain = each.plain({OptimizerParamGroup(expected)});
          step_from(*plain, expected, 0, 2);
          const auto parameters = copies_of(expected);
          ZeroRedundancyOptimizer zero(group, parameters, each.sliced);
          zero.load_state(state_of(*plain));
          step_from(zero, parameters, 2, 2);
          step_from(*plain, expected, 2, 2);
          expect_same(parameters, expected, each.name);
        },
        kStateRanks);
  }
}

TEST(ZeroState, OfAnotherKindIsRefused) {
  const TemporaryFolder folder;
  run_threads(
      2,
      [&](const Group& group) {
        const std::vector<at::Tensor> parameters{torch::zeros({40, 40})};
        const std::vector<at::Tensor> others{torch::zeros({40, 41})};
        const auto adam = test::adam_case().sliced;
        ZeroRedundancyOptimizer zero(group, parameters, adam);
        EXPECT_ERROR(Error, zero.load(folder.path()), "zero.rank0");
        step_from(zero, parameters, 0, 1);
        zero.save(folder.path());
        ZeroRedundancyOptimizer sgd(group, parameters, test::sgd_case().sliced);
        EXPECT_ERROR(
            Error,
            sgd.load(folder.path()),
            "is the state of Adam, expected that of SGD");
        EXPECT_ERROR(
            Error,
            sgd.load_state({"Adam", {}}),
            "got the state of Adam, expected that of SGD");
        ZeroRedundancyOptimizer other(group, others, adam);
        EXPECT_ERROR(
            Error,
            other.load(folder.path()),
            "of another model: parameter '0' has 1600 Float elements there, "
            "expected 1640 Float");
        EXPECT_ERROR(
            Error,
            zero.load_state({"Adam", {{}, {}}}),
            "got the state of 2 parameters, expected 1");
        EXPECT_ERROR(Error, zero.consolidate(2), "got rank 2, expected 0 to 1");
        group.barrier().wait();
        // Every byte of a file counts, and so does the save that it is of.
        const std::string file = folder / "zero.rank1";
        if (group.rank() == 0) {
          std::fstream stream(file, std::ios::in | std::ios::out);
          stream.seekp(200);
          stream.put('!');
        }
        group.barrier().wait();
        EXPECT_ERROR(
            Error, zero.load(folder.path()), "zero.rank1", "is damaged");
        group.barrier().wait();
        zero.save(folder.path());
        const std::string old = [&] {
          std::ifstream stream(file, std::ios::binary);
          return std::string(std::istreambuf_iterator<char>(stream), {});
        }();
        zero.save(folder.path());
        group.barrier().wait();
        if (group.rank() == 0) {
          std::ofstream(file, std::ios::binary) << old;
        }
        group.barrier().wait();
        EXPECT_ERROR(Error, zero.load(folder.path()), "was not saved together");
        std::ostringstream stream;
        EXPECT_ERROR(
            Error, torch::save(zero, stream), "save(folder) and consolidate()");
      },
      kStateRanks);
}

// With a row of its own an optimizer is kept like the others.
class Counting : public torch::optim::SGD {
  using SGD::SGD;
};

TEST(ZeroState, KnowsRegisteredOptimizers) {
  const std::vector<at::Tensor> one{torch::zeros({3})};
  torch::optim::SGD sgd(one, torch::optim::SGDOptions(1).momentum(0.5));
  OptimizerKind kind = *find_optimizer_kind(sgd);
  EXPECT_ERROR(Error, register_optimizer(kind), "'SGD' already");
  // Rows stay, and a test may run twice in a process.
  static int runs = 0;
  kind.name = concat("Counting", ++runs);
  kind.is = [](const torch::optim::Optimizer& optimizer) {
    return dynamic_cast<const Counting*>(&optimizer) != nullptr;
  };
  register_optimizer(kind);
  Counting counting(one, torch::optim::SGDOptions(1).momentum(0.5));
  give_gradients(one, 1);
  counting.step();
  EXPECT_EQ(state_of(counting).optimizer, kind.name);
  EXPECT_EQ(
      state_of(counting).parameters[0].tensors.count("momentum_buffer"), 1U);
  EXPECT_ERROR(
      Error, load_state(sgd, state_of(counting)), "got the state of Counting");
}

TEST(OptimizerState, IsCheckedBeforeItIsLoaded) {
  const std::vector<at::Tensor> one{torch::zeros({3})};
  torch::optim::Adam adam(one, torch::optim::AdamOptions(1));
  give_gradients(one, 1);
  adam.step();
  auto state = state_of(adam);
  EXPECT_EQ(state.parameters[0].numbers.at("step"), 1);
  EXPECT_EQ(state_bytes(state.parameters[0]), 24);
  auto wrong = state;
  wrong.parameters[0].tensors["exp_avg"] = torch::zeros({4});
  EXPECT_ERROR(
      Error,
      load_state(adam, wrong),
      "'exp_avg' of parameter 0 is of Float [4], expected Float [3]");
  wrong = state;
  wrong.parameters[0].tensors["sum"] = torch::zeros({3});
  EXPECT_ERROR(Error, load_state(adam, wrong), "entries of another optimizer");
  wrong.parameters.clear();
  EXPECT_ERROR(Error, load_state(adam, wrong), "of 0 parameters, expected 1");
  torch::optim::LBFGS lbfgs(one, torch::optim::LBFGSOptions(1));
  EXPECT_ERROR(Error, state_of(lbfgs), "register_optimizer");
}

}  // namespace
}  // namespace gradwire
