#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/command.h"

namespace gradwire::test {
namespace {

using nlohmann::json;

TEST(BenchRpc, MeasuresBesidePyTorch) {
  const TemporaryFolder folder;
  const std::string file = folder / "rpc.json";
  const auto result = command(concat(
      GRADWIRE_CLI " bench rpc --rounds 2 --calls 50 --peer " GRADWIRE_SOURCE
                   "/.venv/bin/python --json ",
      file));
  ASSERT_EQ(result.code, 0) << result.output;
  const json report = json::parse(std::ifstream(file));
  EXPECT_TRUE(report.at("results_agree"));
  ASSERT_EQ(report.at("rows").size(), 7u);
  for (const auto& row : report.at("rows")) {
    EXPECT_EQ(row.at("samples_ms").size(), 2u);
    EXPECT_GT(row.at("median_ms"), 0);
    EXPECT_EQ(row.contains("times_gradwire"), row.at("side") == "PyTorch");
  }
}

TEST(BenchRpc, BadOptionsAreRefused) {
  for (const auto& [options, text] :
       std::vector<std::pair<std::string, std::string>>{
           {"--transport ib", "--transport is 'ib', expected tcp or shm"},
           {"--rounds 0", "rounds"},
           {"--peer /no/such/python", "cannot be run"}}) {
    const auto result = command(GRADWIRE_CLI " bench rpc " + options);
    EXPECT_EQ(result.code, 2) << options;
    EXPECT_NE(result.output.find(text), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace gradwire::test
