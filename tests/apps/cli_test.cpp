// The command line as a user meets it: what it prints and how it exits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/apps/cli.h"
#include "tests/support/command.h"

namespace gradwire {
namespace {

using test::command;
using test::kCli;
using testing::HasSubstr;

// One clear line and exit code 2.
void expect_refused(const std::string& arguments, const std::string& part) {
  const auto result = command(kCli + " " + arguments);
  EXPECT_EQ(result.code, 2) << arguments << "\n" << result.output;
  EXPECT_THAT(result.output, HasSubstr(part)) << arguments;
  EXPECT_EQ(std::ranges::count(result.output, '\n'), 1) << arguments << "\n"
                                                        << result.output;
}

TEST(Cli, BadInputIsOneLineAndExitCodeTwo) {
  expect_refused("", "subcommand is required");
  expect_refused("trian", "trian");
  expect_refused("train --no-such-flag", "--no-such-flag");
  expect_refused("train --epochs many", "--epochs");
  expect_refused("train --nproc 0", "--nproc is 0, expected 1 to 256");
  expect_refused("train --nproc 1000", "--nproc is 1000, expected 1 to 256");
  expect_refused("train --epochs 0", "--epochs is 0");
  expect_refused("train --batch 1 --nproc 2", "at least one sample a rank");
  expect_refused("train --lr -1", "--lr is -1");
  expect_refused("train --hook alreduce", "did you mean 'allreduce'?");
  expect_refused("train --hook 'allreduce:x=1'", "unknown option 'x'");
  expect_refused("train --model vgg", "known are mlp, cnn, resnet18");
  expect_refused("train --model mlp:0", "width from 1 to 65536");
  expect_refused("train --data /no/such/place", "no data at '/no/such/place'");
  expect_refused("train --data /tmp", "no train-images-idx3-ubyte");
  expect_refused("train --json /no/such/folder/r.json", "cannot write");
  expect_refused("train --json /tmp", "it is a folder");
  expect_refused("train --checkpoint /proc/x", "cannot make the folder");
  expect_refused("train --resume", "--resume needs --checkpoint DIR");
  expect_refused("run --nproc 0 -- true", "nproc is 0");
  expect_refused("run --nproc 2 -- /no/such/program", "cannot run");
  expect_refused("run --nproc 2", "command is required");
}

TEST(Cli, BadBenchmarksAreOneLineAndExitCodeTwo) {
  expect_refused("bench --nproc 1", "--nproc is 1, expected 2 to 64");
  expect_refused("bench --hooks none,alreduce", "did you mean 'allreduce'?");
  expect_refused("bench --hooks none,,noop", "has an empty entry");
  expect_refused("bench --link fast", "--link 'fast' is no rate, expected");
  expect_refused("bench --link 1gbit,", "--link '' is no rate");
  expect_refused("bench --link 1gbit --link 1gbit", "1gbit is given twice");
  expect_refused("bench --model vgg", "known are mlp, cnn, resnet18");
  expect_refused("bench --steps 0", "--steps is 0, expected 1 to");
  expect_refused("bench --json /no/such/folder/b.json", "cannot write");
  expect_refused("bench --peer /no/such/python", "cannot be run, expected");
  expect_refused("bench --peer python3 --model cnn", "expected mlp");
  expect_refused("bench --peer false", "'false' cannot import torch");
}

TEST(Cli, VersionAndHelp) {
  EXPECT_THAT(command(kCli + " --version").output, HasSubstr("gradwire 0."));
  const auto help = command(kCli + " train --help");
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, HasSubstr("--hook"));
}

TEST(Cli, InfoTellsWhatIsThere) {
  const auto info =
      command("env -u RANK RANK=1 WORLD_SIZE=3 " + kCli + " info");
  EXPECT_EQ(info.code, 0);
  EXPECT_THAT(info.output, HasSubstr("torch        2."));
  EXPECT_THAT(info.output, HasSubstr("gloo"));
  EXPECT_THAT(info.output, HasSubstr("torchrun: rank 1 of 3"));
}

TEST(Cli, HooksAsTableAndAsJson) {
  const auto table = command(kCli + " hooks").output;
  EXPECT_THAT(table, HasSubstr("\nallreduce "));
  const auto rows =
      nlohmann::json::parse(command(kCli + " hooks --json").output);
  for (const auto& row : rows) {
    // Columns stay apart however long a name is.
    EXPECT_THAT(
        table,
        testing::ContainsRegex(concat(
            "\n",
            row.at("name").get<std::string>(),
            "[^ ]*  +",
            row.at("summary").get<std::string>(),
            "\n")));
    for (const auto& option : row.at("options")) {
      EXPECT_THAT(
          table,
          HasSubstr(concat("  ", option.at("help").get<std::string>(), " (")));
    }
  }
  const auto find = [&](const char* name) {
    const auto row = std::ranges::find_if(
        rows, [&](const auto& candidate) { return candidate["name"] == name; });
    return row == rows.end() ? nlohmann::json() : *row;
  };
  EXPECT_EQ(find("allreduce").at("averages"), true);
  EXPECT_TRUE(find("allreduce").at("options").is_array());
  EXPECT_EQ(find("noop").at("averages"), false);
}

TEST(Cli, RunPrefixesOutputAndPassesArgumentsOn) {
  const auto result = command(
      kCli + " run --nproc 2 -- sh -c 'echo $RANK of $WORLD_SIZE $0' x");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.output, HasSubstr("[rank 0] 0 of 2 x\n"));
  EXPECT_THAT(result.output, HasSubstr("[rank 1] 1 of 2 x\n"));
}

TEST(Cli, RunNamesTheRankThatFailed) {
  auto result = command(
      kCli + " run --nproc 3 -- sh -c '[ $RANK = 2 ] && exit 5; sleep 60'");
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(
      result.output,
      HasSubstr("rank 2 exited with code 5; the other ranks were ended"));
  result = command(
      kCli +
      " run --nproc 2 -- sh -c '[ $RANK = 1 ] && kill -SEGV $$; sleep 60'");
  EXPECT_EQ(result.code, 139);
  EXPECT_THAT(result.output, HasSubstr("killed by signal 11 (SIGSEGV)"));
}

// A shell command that waits until both ranks have written to files of their
// own, however busy the machine is.
std::string until_both_have(const std::string& file) {
  return "for i in $(seq 600); do [ -s " + file + "0 ] && [ -s " + file +
         "1 ] && break; sleep 0.1; done; ";
}

TEST(Cli, RunGivesRoles) {
  const auto result = command(
      GRADWIRE_CLI
      " run --role trainer=2 --role embedding=1 -- sh -c 'echo $RANK of "
      "$WORLD_SIZE, $ROLE_NAME $ROLE_RANK of $ROLE_WORLD_SIZE'");
  EXPECT_EQ(result.code, 0);
  for (const char* line :
       {"[trainer0] 0 of 3, trainer 0 of 2\n",
        "[trainer1] 1 of 3, trainer 1 of 2\n",
        "[embedding0] 2 of 3, embedding 0 of 1\n"}) {
    EXPECT_NE(result.output.find(line), std::string::npos) << result.output;
  }
  for (const char* roles :
       {"trainer",
        "trainer=",
        "=2",
        "trainer=0",
        "trainer=2x",
        "trainer=1 --role trainer=2"}) {
    const auto refused =
        command(concat(GRADWIRE_CLI " run --role ", roles, " -- true"));
    EXPECT_EQ(refused.code, 2) << roles;
    EXPECT_NE(refused.output.find("--role is '"), std::string::npos)
        << refused.output;
  }
  EXPECT_EQ(
      command(GRADWIRE_CLI " run --nproc 2 --role trainer=2 -- true").code, 2);
}

TEST(Cli, RunForwardsSignals) {
  const test::TemporaryFolder folder;
  const auto result = command(
      "cd " + folder.path().string() + "; " + kCli +
      " run --nproc 2 -- sh -c 'trap \"echo caught; exit 0\" TERM; "
      "echo > ready$RANK; while :; do sleep 0.05; done' & " +
      until_both_have("ready") + "kill -TERM $!; wait $!; echo code $?");
  EXPECT_THAT(result.output, HasSubstr("[rank 0] caught"));
  EXPECT_THAT(result.output, HasSubstr("[rank 1] caught"));
}

// A launcher that is killed outright leaves nothing behind.
TEST(Cli, RanksDieWithTheirLauncher) {
  const test::TemporaryFolder folder;
  const auto result = command(
      "cd " + folder.path().string() + "; " + kCli +
      " run --nproc 2 -- sh -c 'echo $$ > pid$RANK; exec sleep 60' "
      ">/dev/null & " +
      until_both_have("pid") +
      "kill -KILL $!; sleep 0.3; for pid in $(cat pid0 pid1); do "
      "grep -q 'State:.[RSDT]' /proc/$pid/status && echo $pid runs; "
      "echo checked; done");
  EXPECT_THAT(result.output, HasSubstr("checked\nchecked\n"));
  EXPECT_THAT(result.output, testing::Not(HasSubstr("runs")));
}

}  // namespace
}  // namespace gradwire
