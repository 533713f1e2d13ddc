// The same binary under every launcher there is: gradwire run, torchrun and
// mpirun.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "gradwire/base/text.h"
#include "tests/apps/cli.h"
#include "tests/support/command.h"

namespace gradwire {
namespace {

using test::command;
using test::kCli;
using test::TemporaryFolder;

// As torchrun, whose script a borrowed Torch does not bring along.
const std::string kTorchrun =
    GRADWIRE_SOURCE "/.venv/bin/python -m torch.distributed.run";

constexpr const char* kTrain =
    " train --data synthetic --model mlp:32 --max-steps 10 --json ";

std::string weights_of(const std::string& launcher) {
  const TemporaryFolder folder;
  const std::string file = folder / "report.json";
  const auto result = command(launcher + kTrain + file);
  EXPECT_EQ(result.code, 0) << launcher << "\n" << result.output;
  if (result.code != 0) {
    return "";
  }
  const auto report = nlohmann::json::parse(std::ifstream(file));
  EXPECT_EQ(report.at("world"), 2);
  return report.at("weights");
}

TEST(Launchers, AllOfThemTrainTheSameWeights) {
  const std::string own = weights_of(kCli);
  EXPECT_EQ(weights_of(kCli + " run --nproc 2 -- " + kCli), own);
  EXPECT_EQ(
      weights_of(
          kTorchrun + " --standalone --nproc-per-node 2 --no-python " + kCli),
      own);
  EXPECT_EQ(
      weights_of("mpirun --allow-run-as-root --oversubscribe -np 2 " + kCli),
      own);
}

TEST(Launchers, NprocMustNotContradictTheLauncher) {
  const auto result = command(
      kCli + " run --nproc 2 -- " + kCli +
      " train --nproc 3 --data synthetic --max-steps 1");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(
      result.output,
      testing::HasSubstr("--nproc is 3 but torchrun started 2 ranks"));
}

TEST(Launchers, PythonScriptsRunToo) {
  const TemporaryFolder folder;
  const std::string script = folder / "hello.py";
  std::ofstream(script)
      << "import torch.distributed as dist, torch\n"
         "dist.init_process_group('gloo')\n"
         "t = torch.ones(1); dist.all_reduce(t)\n"
         "print('sum', int(t.item()), 'on', dist.get_rank())\n"
         "dist.destroy_process_group()\n";
  const auto result = command(
      kCli + " run --nproc 2 -- " + GRADWIRE_SOURCE + "/.venv/bin/python " +
      script);
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, testing::HasSubstr("[rank 1] sum 2 on 1"));
}

}  // namespace
}  // namespace gradwire
