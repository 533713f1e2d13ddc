#include "apps/gradwire/train/training_state.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/hostile_archive.h"

namespace gradwire::apps {
namespace {

using test::TemporaryFolder;

struct Trained {
  explicit Trained(int width = 4)
      : net(torch::nn::Linear(3, width),
            torch::nn::BatchNorm1d(width),
            torch::nn::Linear(width, 1)),
        sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)) {}

  void step() {
    sgd.zero_grad();
    net->forward(torch::arange(15.0f).view({5, 3}).sin())
        .square()
        .sum()
        .backward();
    sgd.step();
  }
  std::string pack() {
    return pack_state(*net, state_of(sgd));
  }
  void unpack(const std::string& bytes) {
    unpack_state(bytes, *net, [this](const OptimizerState& state) {
      load_state(sgd, state);
    });
  }

  torch::nn::Sequential net;
  torch::optim::SGD sgd;
};

TEST(TrainingState, GoesOnWithTheSameBits) {
  Trained first;
  first.step();
  first.step();
  Trained second;
  second.step();
  second.unpack(first.pack());
  EXPECT_EQ(second.pack(), first.pack());
  first.step();
  second.step();
  EXPECT_EQ(second.pack(), first.pack());
}

TEST(TrainingState, WhatDoesNotFitChangesNothing) {
  Trained small;
  small.step();
  Trained large(5);
  large.step();
  const std::string before = large.pack();
  EXPECT_ERROR(
      Error,
      large.unpack(small.pack()),
      "the state of the checkpoint is damaged: '",
      "' does not fit the model");
  EXPECT_EQ(large.pack(), before);
  for (std::size_t size = 0; size < before.size(); size += 7) {
    EXPECT_ERROR(Error, large.unpack(before.substr(0, size)), "is damaged");
  }
}

// Whatever such an archive says is done while Torch loads it.
TEST(TrainingState, ArchivesOfTorchScriptAreRefused) {
  const TemporaryFolder folder;
  const std::string made = folder / "made";
  Trained trained;
  EXPECT_ERROR(
      Error, trained.unpack(test::archive_that_makes(made)), "is damaged");
  EXPECT_FALSE(std::filesystem::exists(made));
}

}  // namespace
}  // namespace gradwire::apps
