// Bytes are counted, not estimated: what DDP says it sent against what the
// kernel saw pass, in a network namespace with nobody else in it.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "gradwire/base/text.h"
#include "tests/support/command.h"

namespace gradwire {
namespace {

using test::command;
using test::TemporaryFolder;

class Wire : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, Wire, testing::Values(2, 4));

TEST_P(Wire, CountedBytesAreTheKernelsBytes) {
  const TemporaryFolder folder;
  const std::string report = folder / "report.json";
  // The last number is what the loopback interface has transmitted.
  const auto result = command(concat(
      "unshare -rn sh -c 'ip link set lo up && ",
      GRADWIRE_CLI,
      " train --data synthetic --model mlp:512 --max-steps 40 --nproc ",
      GetParam(),
      " --json ",
      report,
      " >/dev/null && awk \"/lo:/ {print \\$10}\" /proc/net/dev'"));
  ASSERT_EQ(result.code, 0) << result.output;
  const auto last_line = result.output.rfind('\n', result.output.size() - 2);
  const double seen = std::stod(result.output.substr(last_line + 1));
  const auto json = nlohmann::json::parse(std::ifstream(report));
  const double counted = json.at("bytes_sent_by_all_ranks").get<double>();
  // 40 steps of 2(W-1) times the gradient, and the weights once at the start.
  const double gradient = 4.0 * json.at("parameters").get<double>();
  EXPECT_NEAR(
      counted, (40 * 2 + 1) * (GetParam() - 1) * gradient, 1e-3 * counted);
  // Headers, acknowledgements and the store come on top.
  EXPECT_GT(seen, counted);
  EXPECT_LT(seen, 1.03 * counted);
}

}  // namespace
}  // namespace gradwire
