// Bytes are counted, not estimated: what DDP says it sent against what the
// kernel saw pass, in a network namespace of their own.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gradwire/base/text.h"
#include "tests/apps/report.h"
#include "tests/support/command.h"

namespace gradwire {
namespace {

using test::command;
using test::TemporaryFolder;
using test::total_of;

struct Case {
  int world;
  std::string hook;
  // Of the test, where the hook is not a name.
  std::string name = hook;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.hook << " on " << c.world;
}

class Wire : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    World,
    Wire,
    testing::Values(
        Case{2, "none"},
        Case{4, "none"},
        Case{2, "int8"},
        Case{4, "int8"},
        Case{4, "fp16"},
        Case{2, "powersgd:rank=32,start=0", "powersgd"},
        Case{4, "powersgd:rank=32,start=0", "powersgd"}),
    [](const auto& info) {
      return concat(info.param.name, "_W", info.param.world);
    });

// What an interface with Ethernet's MTU adds to every packet.
constexpr double kHeaderBytes = 14 + 20 + 32;

TEST_P(Wire, CountedBytesAreTheKernelsBytes) {
  const TemporaryFolder folder;
  const std::string report = folder / "report.json";
  // The last line is what the loopback interface has transmitted: bytes and
  // packets. Without offloads a packet there is one on the wire.
  const auto result = command(concat(
      "unshare -rn sh -c 'ip link set lo mtu 1500 up && ",
      GRADWIRE_CLI,
      " train --data synthetic --model mlp:512 --max-steps 60 --nproc ",
      GetParam().world,
      " --hook ",
      GetParam().hook,
      " --json ",
      report,
      " >/dev/null && awk \"/lo:/ {print \\$10, \\$11}\" /proc/net/dev'"));
  ASSERT_EQ(result.code, 0) << result.output;
  const auto last_line = result.output.rfind('\n', result.output.size() - 2);
  std::istringstream numbers(result.output.substr(last_line + 1));
  double bytes = 0;
  double packets = 0;
  numbers >> bytes >> packets;
  const auto json = nlohmann::json::parse(std::ifstream(report));
  const auto counted =
      static_cast<double>(total_of(json.at("sent_by_all_ranks")));
  const double seen = bytes - kHeaderBytes * packets;
  EXPECT_GT(seen, counted);
  // The transport's framing and the store come on top.
  EXPECT_LT(seen, 1.03 * counted);
}

// 40 steps of 2(W-1) times the gradient, and the weights once at the start.
TEST(WireCount, PlainAveragingSendsTwiceTheGradient) {
  const TemporaryFolder folder;
  const std::string report = folder / "report.json";
  const auto result = command(concat(
      GRADWIRE_CLI,
      " train --data synthetic --model mlp:512 --max-steps 40 --nproc 4 "
      "--json ",
      report));
  ASSERT_EQ(result.code, 0) << result.output;
  const auto json = nlohmann::json::parse(std::ifstream(report));
  const auto counted =
      static_cast<double>(total_of(json.at("sent_by_all_ranks")));
  const double gradient = 4.0 * json.at("parameters").get<double>();
  EXPECT_NEAR(counted, (40 * 2 + 1) * 3 * gradient, 1e-3 * counted);
}

}  // namespace
}  // namespace gradwire
