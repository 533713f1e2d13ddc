// The flags of `gradwire train` that say how parameters step.

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

constexpr const char* kRun =
    " train --data synthetic --model mlp:64 --batch 64 --max-steps ";

class TrainStepping : public testing::Test {
 protected:
  json run(int steps, const std::string& flags) const {
    const std::string file = folder_ / "report.json";
    const auto result =
        command(concat(kCli, kRun, steps, " ", flags, " --json ", file));
    EXPECT_EQ(result.code, 0) << flags << "\n" << result.output;
    return result.code == 0 ? json::parse(std::ifstream(file)) : json();
  }
  std::string refusal(const std::string& flags) const {
    const auto result = command(concat(kCli, kRun, 1, " --nproc 2 ", flags));
    EXPECT_EQ(result.code, 2) << flags << "\n" << result.output;
    return result.output;
  }
  std::string saved() const {
    return concat(" --checkpoint ", folder_.path().string());
  }

  TemporaryFolder folder_;
};

TEST_F(TrainStepping, OverlapAndZeroGiveTheBitsOfThePlainOptimizer) {
  for (const char* optimizer : {"sgd --lr 0.05", "adam --lr 0.001"}) {
    const std::string flags =
        concat("--nproc 2 --hook int8 --optimizer ", optimizer);
    const json plain = run(8, flags);
    for (const char* how : {" --overlap", " --zero", " --zero --overlap"}) {
      const json report = run(8, flags + how);
      EXPECT_EQ(report.at("weights"), plain.at("weights")) << flags << how;
      EXPECT_EQ(report.at("identical"), true) << flags << how;
    }
  }
}

TEST_F(TrainStepping, ZeroSharesTheState) {
  const std::string flags = "--nproc 2 --optimizer adam --lr 0.001";
  const auto whole =
      run(2, flags).at("optimizer_state_bytes").get<std::int64_t>();
  const json zero = run(2, flags + " --zero");
  EXPECT_LT(
      zero.at("optimizer_state_bytes").get<double>(),
      1.05 / 2 * static_cast<double>(whole));
  EXPECT_GT(total_of(zero.at("sent_for_parameters")), 0);
}

TEST_F(TrainStepping, LocalTrainingSendsLessAndEndsWithOneModel) {
  const auto plain = total_of(run(16, "--nproc 2").at("sent"));
  for (const char* flags :
       {"--local-sgd 4", "--local-sgd 4 --hook int8", "--diloco 8,int4"}) {
    const json report = run(16, concat("--nproc 2 ", flags));
    EXPECT_EQ(report.at("identical"), true) << flags;
    EXPECT_LT(
        total_of(report.at("sent")) +
            total_of(report.at("sent_for_parameters")),
        plain * 3 / 5)
        << flags;
  }
}

TEST_F(TrainStepping, MixedPrecisionTrains) {
  for (const char* flags :
       {"--precision bf16 --hook bf16", "--precision fp16 --overlap"}) {
    const json report = run(20, concat("--nproc 2 ", flags));
    EXPECT_EQ(report.at("identical"), true) << flags;
    EXPECT_GT(report.at("test_accuracy").get<double>(), 0.3) << flags;
  }
}

TEST_F(TrainStepping, AResumedRunEqualsAnUninterruptedOne) {
  for (const char* flags :
       {"--optimizer adam --lr 0.001 --zero --overlap",
        "--optimizer rmsprop --lr 0.001 --local-sgd 4 --hook int8",
        "--diloco 6,int8",
        "--precision fp16"}) {
    const std::string both = concat("--nproc 2 ", flags);
    const json expected = run(14, both + saved());
    run(9, both + saved());
    const json resumed = run(14, both + saved() + " --resume");
    EXPECT_EQ(resumed.at("first_step"), 9) << flags;
    EXPECT_EQ(resumed.at("weights"), expected.at("weights")) << flags;
  }
}

TEST_F(TrainStepping, ZeroAndLocalSgdResumeInAnotherWorld) {
  for (const char* flags : {"--zero --optimizer adam", "--local-sgd 4"}) {
    run(6, concat("--nproc 3 ", flags, saved()));
    const json resumed = run(10, concat("--nproc 2 --resume ", flags, saved()));
    EXPECT_EQ(resumed.at("first_step"), 6) << flags;
    EXPECT_EQ(resumed.at("identical"), true) << flags;
  }
}

TEST_F(TrainStepping, FlagsThatExcludeEachOtherAreRefused) {
  EXPECT_THAT(
      refusal("--local-sgd 2 --diloco 4"),
      HasSubstr("--local-sgd and --diloco exclude each other"));
  EXPECT_THAT(
      refusal("--zero --diloco 4"),
      HasSubstr("--zero and --diloco exclude each other"));
  EXPECT_THAT(
      refusal("--overlap --local-sgd 4"),
      HasSubstr("--overlap and --local-sgd exclude each other"));
  EXPECT_THAT(
      refusal("--diloco 4 --hook int8"),
      HasSubstr("--hook and --diloco exclude each other"));
  EXPECT_THAT(refusal("--diloco x"), HasSubstr("--diloco is 'x', expected"));
  EXPECT_THAT(refusal("--diloco 4,int7"), HasSubstr("unknown hook 'int7'"));
  EXPECT_THAT(refusal("--optimizer adamx"), HasSubstr("did you mean 'adam'?"));
  EXPECT_THAT(
      refusal("--precision fp8"),
      HasSubstr("--precision is 'fp8', expected bf16 or fp16"));
}

}  // namespace
}  // namespace gradwire
