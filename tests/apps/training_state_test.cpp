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
  explicit Trained(int width = 4, double momentum = 0.9)
      : net(torch::nn::Linear(3, width),
            torch::nn::BatchNorm1d(width),
            torch::nn::Linear(width, 1)),
        sgd(net->parameters(),
            torch::optim::SGDOptions(0.1).momentum(momentum)) {}

  void step() {
    sgd.zero_grad();
    net->forward(torch::arange(15.0f).view({5, 3}).sin())
        .square()
        .sum()
        .backward();
    sgd.step();
  }
  std::string pack() {
    return pack_state(*net, sgd);
  }

  torch::nn::Sequential net;
  torch::optim::SGD sgd;
};

TEST(TrainingState, GoesOnWithTheSameBits) {
  Trained first;
  first.step();
  first.step();
  Trained second(4, 0.5);
  second.step();
  unpack_state(first.pack(), *second.net, second.sgd);
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
      unpack_state(small.pack(), *large.net, large.sgd),
      "the state of the checkpoint is damaged: '",
      "' does not fit the model");
  EXPECT_EQ(large.pack(), before);
  for (std::size_t size = 0; size < before.size(); size += 7) {
    EXPECT_ERROR(
        Error,
        unpack_state(before.substr(0, size), *large.net, large.sgd),
        "is damaged");
  }
}

// Whatever such an archive says is done while Torch loads it.
TEST(TrainingState, ArchivesOfTorchScriptAreRefused) {
  const TemporaryFolder folder;
  const std::string made = folder / "made";
  Trained trained;
  EXPECT_ERROR(
      Error,
      unpack_state(test::archive_that_makes(made), *trained.net, trained.sgd),
      "is damaged");
  EXPECT_FALSE(std::filesystem::exists(made));
}

}  // namespace
}  // namespace gradwire::apps
