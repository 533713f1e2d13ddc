// The main job from end to end, as processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "gradwire/base/text.h"
#include "tests/apps/cli.h"
#include "tests/apps/report.h"
#include "tests/support/command.h"

namespace gradwire {
namespace {

using nlohmann::json;
using test::command;
using test::kCli;
using test::TemporaryFolder;
using test::total_of;
using testing::HasSubstr;

json read_json(const std::string& path) {
  return json::parse(std::ifstream(path));
}

const json& sent_in_last_step(const json& report) {
  return report.at("last").at("sent");
}

// Trains and returns the report.
json train(const TemporaryFolder& folder, const std::string& arguments) {
  const std::string file = folder / "report.json";
  const auto result = command(kCli + " train " + arguments + " --json " + file);
  EXPECT_EQ(result.code, 0) << arguments << "\n" << result.output;
  return result.code == 0 ? read_json(file) : json();
}

constexpr const char* kShort =
    "--data synthetic --model mlp:64 --max-steps 20 ";

TEST(Train, ReportHoldsWhatItPromises) {
  const TemporaryFolder folder;
  const json report =
      train(folder, concat(kShort, "--nproc 2 --hook allreduce"));
  EXPECT_EQ(report.at("world"), 2);
  EXPECT_EQ(report.at("hook"), "allreduce");
  EXPECT_EQ(report.at("steps"), 20);
  EXPECT_EQ(report.at("loss").size(), 20u);
  EXPECT_EQ(report.at("identical"), true);
  const std::int64_t elems = 784 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10;
  EXPECT_EQ(report.at("parameters"), elems);
  EXPECT_EQ(sent_in_last_step(report).at("payload"), elems * 4);
  const json& mean = report.at("mean");
  EXPECT_GE(mean.at("exposed_ms").get<double>(), 0);
  EXPECT_GT(mean.at("forward_ms").get<double>(), 0);
  EXPECT_GE(mean.at("backward_ms"), mean.at("communication_ms"));
  EXPECT_GT(report.at("test_accuracy").get<double>(), 0.3);
}

TEST(Train, SameSeedSameWeightsBitForBit) {
  const TemporaryFolder folder;
  const auto weights = [&](const char* seed) {
    return train(folder, concat(kShort, "--nproc 2 --seed ", seed))
        .at("weights")
        .get<std::string>();
  };
  const std::string first = weights("5");
  EXPECT_EQ(weights("5"), first);
  EXPECT_NE(weights("6"), first);
}

TEST(Train, SameGlobalBatchSameLossCurveAtEveryWorld) {
  const TemporaryFolder folder;
  std::vector<std::vector<double>> curves;
  for (const int world : {1, 2, 3, 4}) {
    curves.push_back(
        train(
            folder,
            concat(
                "--model cnn --data fashion-mnist --max-steps 50 --nproc ",
                world))
            .at("loss")
            .get<std::vector<double>>());
    ASSERT_EQ(curves.back().size(), 50u);
    for (std::size_t step = 0; step < 50; ++step) {
      EXPECT_NEAR(curves.back()[step], curves.front()[step], 1e-4)
          << "world " << world << ", step " << step;
    }
  }
  EXPECT_LT(curves[0].back(), 0.9 * curves[0].front());
}

TEST(Train, EveryModelTrains) {
  const TemporaryFolder folder;
  for (const char* model : {"mlp", "cnn", "resnet18:8"}) {
    const json report = train(
        folder,
        concat(
            "--data synthetic --max-steps 3 --nproc 2 --batch 16 --model ",
            model));
    EXPECT_EQ(report.at("identical"), true) << model;
  }
}

TEST(Train, NoopLetsReplicasDriftAndSaysSo) {
  const TemporaryFolder folder;
  const json report = train(folder, concat(kShort, "--nproc 2 --hook noop"));
  EXPECT_EQ(report.at("identical"), false);
  EXPECT_EQ(sent_in_last_step(report).at("payload"), 0);
}

// Also with a hook that remembers what it still owes.
class TrainWith : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Hooks, TrainWith, testing::Values("none", "int4:rounding=stochastic"));

TEST_P(TrainWith, AResumedRunEqualsAnUninterruptedOne) {
  const TemporaryFolder whole;
  const TemporaryFolder parts;
  const std::string arguments = concat(
      "--data synthetic --model cnn:4 --nproc 3 --epochs 2 --hook ",
      GetParam(),
      " ");
  const std::string saved = " --checkpoint " + parts.path().string();
  const json expected = train(whole, arguments);
  // Stopped in the middle of an epoch, then at the end of one.
  train(parts, arguments + "--max-steps 30" + saved);
  train(parts, arguments + "--epochs 1 --resume" + saved);
  const json resumed = train(parts, arguments + "--resume" + saved);
  EXPECT_EQ(resumed.at("first_step"), 64);
  EXPECT_EQ(
      64 + resumed.at("steps").get<int>(), expected.at("steps").get<int>());
  EXPECT_EQ(resumed.at("weights"), expected.at("weights"));
  // Nothing left to do is fine too, and so is another world.
  const json again = train(parts, arguments + "--resume" + saved);
  EXPECT_EQ(again.at("weights"), expected.at("weights"));
}

TEST(Train, Int8IsOneFlagAndTheReportShowsWhatItSaved) {
  const TemporaryFolder folder;
  const std::string arguments =
      "--data synthetic --model mlp:256 --max-steps 20 --nproc 3 --hook ";
  const json plain = train(folder, arguments + "none");
  const json report = train(folder, arguments + "int8");
  EXPECT_EQ(report.at("identical"), true);
  EXPECT_EQ(report.at("plain_bytes"), sent_in_last_step(plain).at("payload"));
  const auto sent = total_of(sent_in_last_step(report));
  EXPECT_LT(
      static_cast<double>(sent) / report.at("plain_bytes").get<double>(),
      0.254 + 0.002);
  std::int64_t by_bucket = 0;
  for (const auto& bucket : report.at("last").at("buckets")) {
    by_bucket += total_of(bucket.at("sent"));
    EXPECT_GE(bucket.at("reduced_ms"), bucket.at("ready_ms"));
  }
  EXPECT_EQ(by_bucket, sent);
  EXPECT_EQ(report.at("sent_by_hook").at(0).at("hook"), "int8");
  EXPECT_EQ(report.at("sent_by_hook").at(0).at("steps"), 20);
  EXPECT_LE(
      total_of(report.at("sent_by_hook").at(0).at("sent")),
      total_of(report.at("sent")));
  // Another hook may go on from a checkpoint; it starts with nothing owed.
  const std::string saved = " --checkpoint " + folder.path().string();
  train(folder, arguments + "int8" + saved);
  const auto other = command(
      kCli + " train " + arguments + "fp16 --max-steps 25 --resume" + saved);
  EXPECT_EQ(other.code, 0);
  EXPECT_THAT(
      other.output,
      HasSubstr("hook fp16 starts afresh, the checkpoint is of int8"));
  EXPECT_THAT(other.output, HasSubstr("that plain averaging sends"));
}

TEST(Train, ForeignCheckpointsAreRefused) {
  const TemporaryFolder folder;
  const std::string saved = " --checkpoint " + folder.path().string();
  train(folder, concat(kShort, "--nproc 2", saved));
  const auto refused = [&](const std::string& arguments) {
    const auto result =
        command(kCli + " train " + kShort + arguments + saved + " --resume");
    EXPECT_EQ(result.code, 2) << result.output;
    return result.output;
  };
  EXPECT_THAT(
      refused("--nproc 2 --model cnn"),
      HasSubstr("model is 'mlp:64' there, expected 'cnn'"));
  EXPECT_THAT(refused("--nproc 1 --seed 9"), HasSubstr("seed is '1' there"));
  std::filesystem::resize_file(folder / "checkpoint.gradwire", 500);
  EXPECT_THAT(refused("--nproc 2"), HasSubstr("checkpoint.gradwire' is trunc"));
}

// A run that does little else than save, killed at any moment, leaves a
// checkpoint to continue from.
TEST(Train, KillDuringASaveLosesNothing) {
  const TemporaryFolder folder;
  const std::string arguments = concat(
      " train --data synthetic --model mlp:256 --nproc 2 --hook int8 --epochs "
      "100 "
      "--checkpoint-every 1 --checkpoint ",
      folder.path().string());
  const std::string marker = folder / "marker";
  long step = 0;
  for (int round = 0; round < 6; ++round) {
    // Some time after it has saved for the first time.
    command(concat(
        "touch ",
        marker,
        "; ",
        kCli,
        arguments,
        round > 0 ? " --resume" : "",
        " & run=$!; for i in $(seq 600); do [ -n \"$(find ",
        folder.path().string(),
        " -name checkpoint.gradwire -newer ",
        marker,
        ")\" ] && break; sleep 0.1; done; sleep ",
        0.13 * round,
        "; kill -KILL $run; wait"));
    const auto result = command(kCli + arguments + " --resume --max-steps 1");
    ASSERT_EQ(result.code, 0) << result.output;
    const auto at = result.output.find("resumed at step ");
    ASSERT_NE(at, std::string::npos) << result.output;
    const long resumed = std::stol(result.output.substr(at + 16));
    EXPECT_GE(resumed, step);
    step = resumed;
  }
  EXPECT_GT(step, 6);
}

TEST(Train, PlainRowsIntoAFileABarOnATerminal) {
  const auto file = command(
      kCli + " train --data synthetic --model mlp:8 --nproc 2 --max-steps 60");
  EXPECT_THAT(file.output, HasSubstr("step 50/60  epoch 1/2  loss "));
  EXPECT_EQ(file.output.find('\r'), std::string::npos);
  const auto terminal = command(
      "script -qec '" + kCli +
      " train --data synthetic --model mlp:8 --nproc 2 --max-steps 60' "
      "/dev/null");
  EXPECT_THAT(terminal.output, HasSubstr("\r"));
  EXPECT_THAT(terminal.output, HasSubstr("60/60"));
  EXPECT_THAT(terminal.output, HasSubstr(" left"));
}

TEST(Train, FashionMnistCnnReaches88Percent) {
  const TemporaryFolder folder;
  const json report = train(
      folder,
      "--nproc 2 --hook allreduce --data fashion-mnist --model cnn --epochs 2 "
      "--batch 128 --lr 0.05 --seed 1");
  EXPECT_GE(report.at("test_accuracy").get<double>(), 0.88);
  EXPECT_EQ(report.at("identical"), true);
}

}  // namespace
}  // namespace gradwire
