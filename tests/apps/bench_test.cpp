// The benchmark command from end to end, as processes, and its parts alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/gradwire/bench/lists.h"
#include "apps/gradwire/bench/report.h"
#include "gradwire/base/bytes.h"
#include "gradwire/base/text.h"
#include "gradwire/comm/gloo.h"
#include "tests/apps/report.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"

namespace gradwire::apps {
namespace {

using nlohmann::json;
using test::command;
using test::TemporaryFolder;
using test::total_of;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kBench = std::string(GRADWIRE_CLI) + " bench ";

// Runs a benchmark that must succeed and returns its JSON.
json bench(const std::string& arguments) {
  const TemporaryFolder folder;
  const std::string file = folder / "bench.json";
  const auto result = command(kBench + arguments + " --json " + file);
  EXPECT_EQ(result.code, 0) << result.output;
  return result.code == 0 ? json::parse(std::ifstream(file)) : json();
}

json row_of(const json& report, const std::string& hook, bool of_peer = false) {
  for (const auto& row : report.at("rows")) {
    if (row.at("hook") == hook && row.contains("peer") == of_peer) {
      return row;
    }
  }
  ADD_FAILURE() << "no row of " << hook;
  return json();
}

TEST(BenchLists, SpecsKeepTheirOptions) {
  EXPECT_THAT(split_specs("none"), ElementsAre("none"));
  EXPECT_THAT(
      split_specs("none,int8:block=256,ef=off,fp16"),
      ElementsAre("none", "int8:block=256,ef=off", "fp16"));
  EXPECT_THAT(
      split_specs(" a:x=1 , b , c(d:y=2,z=3):w=4,d:y=5"),
      ElementsAre("a:x=1", "b", "c(d:y=2,z=3):w=4", "d:y=5"));
  EXPECT_THAT(split_specs("a(b,c),d"), ElementsAre("a(b,c)", "d"));
  EXPECT_ERROR(Error, split_specs(""), "empty entry");
  EXPECT_ERROR(Error, split_specs("none,"), "'none,' has an empty entry");
}

TEST(BenchLists, LinksAreRatesAsOfTc) {
  const auto links = parse_links({"1gbit, 100mbit", "loopback", "2.5gbit"});
  ASSERT_EQ(links.size(), 4);
  EXPECT_EQ(links[0].bits_per_second, 1e9);
  EXPECT_EQ(links[0].burst_bytes(), 250000);
  EXPECT_EQ(links[1].bits_per_second, 1e8);
  EXPECT_EQ(links[1].burst_bytes(), 65536);
  EXPECT_FALSE(links[2].shaped());
  EXPECT_EQ(links[3].bits_per_second, 2.5e9);
  EXPECT_EQ(parse_links({}).at(0).name, "loopback");
  for (const char* bad :
       {"", "gbit", "1", "1gb", "-1gbit", "1e3mbit", "1kbit", "1000gbit"}) {
    EXPECT_ERROR(Error, parse_links({bad}), "is no rate, expected 1mbit to");
  }
}

TEST(BenchReport, RatiosAreTakenWithinRounds) {
  EXPECT_EQ(quantile({4, 1, 3, 2, 5}, 0.5), 3);
  EXPECT_EQ(quantile({1, 2}, 0.5), 1.5);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.9), 9);
  Series slow;
  Series fast;
  // The machine is three times slower in the second round: the same for both.
  slow.step_ms = {{20, 22, 24}, {66, 66, 66}, {22}};
  fast.step_ms = {{11, 11, 50}, {33, 33, 33}, {10}};
  EXPECT_DOUBLE_EQ(speed_up(slow, fast), 2);
}

TEST(BenchReport, LimitIsComputeOrSending) {
  Series noop;
  noop.hook = "noop";
  noop.step_ms = {{20, 20}};
  noop.first_bucket_ms = {4, 4};
  LinkResult result{parse_links({"1gbit"}).at(0), {noop}};
  EXPECT_EQ(*limit_ms(result, 0), 20);
  EXPECT_EQ(*limit_ms(result, 1000), 20);
  // 125000 bytes a ms, 250000 of them at once.
  EXPECT_DOUBLE_EQ(*limit_ms(result, 250000 + 125000 * 100), 104);
  result.link = parse_links({"loopback"}).at(0);
  EXPECT_EQ(limit_ms(result, 1000), std::nullopt);
}

TEST(Bench, LoopbackRowsAreMeasuredAndVerified) {
  const json report = bench(
      "--nproc 2 --model mlp:64 --rounds 2 --steps 3 --hooks "
      "none,allreduce,noop");
  for (const char* key :
       {"schema",
        "gradwire",
        "torch",
        "machine",
        "model",
        "parameters",
        "world",
        "batch",
        "steps",
        "rounds",
        "warmup",
        "rows"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
  EXPECT_EQ(report.at("schema"), 1);
  EXPECT_TRUE(report.at("machine").contains("processor"));
  const std::int64_t parameters = report.at("parameters");
  EXPECT_EQ(parameters, 1024 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10);
  ASSERT_EQ(report.at("rows").size(), 3);
  for (const auto& row : report.at("rows")) {
    EXPECT_EQ(row.at("link"), "loopback");
    EXPECT_EQ(row.at("world"), 2);
    EXPECT_TRUE(row.at("limit_ms").is_null());
    EXPECT_LE(row.at("step_ms").at("p10"), row.at("step_ms").at("p90"));
    ASSERT_EQ(row.at("samples_ms").size(), 2);
    EXPECT_EQ(row.at("samples_ms").at(0).size(), 3);
  }
  for (const char* hook : {"none", "allreduce"}) {
    const auto row = row_of(report, hook);
    EXPECT_EQ(row.at("identical"), true);
    EXPECT_LT(row.at("relative_error"), 1e-6);
    EXPECT_EQ(
        total_of(row.at("sent")), gloo::all_reduce_bytes(0, 2, parameters, 4));
  }
  EXPECT_EQ(row_of(report, "none").at("ratio_to_none"), 1.0);
  const auto noop = row_of(report, "noop");
  EXPECT_TRUE(noop.at("identical").is_null());
  EXPECT_TRUE(noop.at("relative_error").is_null());
  EXPECT_EQ(total_of(noop.at("sent")), 0);
}

TEST(Bench, ALinkIsAsSlowAsItSays) {
  const auto before = command("ip netns list; ip link show").output;
  const json report = bench(
      "--nproc 2 --model mlp:256 --rounds 2 --steps 3 --link 200mbit,1gbit "
      "--hooks none --congestion reno");
  EXPECT_EQ(command("ip netns list; ip link show").output, before);
  ASSERT_EQ(report.at("rows").size(), 2);
  EXPECT_EQ(report.at("rows").at(0).at("link"), "200mbit");
  EXPECT_EQ(report.at("rows").at(1).at("link"), "1gbit");
  const auto links = parse_links({"200mbit,1gbit"});
  for (std::size_t i = 0; i < links.size(); ++i) {
    const auto& row = report.at("rows").at(i);
    // All but the burst must pass at the rate.
    const auto bytes = static_cast<double>(total_of(row.at("sent")));
    const double least = (bytes - static_cast<double>(links[i].burst_bytes())) /
                         links[i].bytes_per_ms();
    EXPECT_GE(row.at("step_ms").at("p10"), least);
    EXPECT_GE(row.at("limit_ms"), least);
    EXPECT_EQ(row.at("identical"), true);
    EXPECT_EQ(report.at("links").at(i).at("congestion"), "reno");
  }
}

// A pattern for the ranks of a benchmark of two with that model. No other test
// uses the width, so it identifies them.
std::string ranks_of(const std::string& width) {
  return "'[b]ench-rank --model mlp:" + width + " '";
}

// For a shell: goes on when both ranks are there, or after half a minute.
std::string wait_for_ranks(const std::string& width) {
  return concat(
      "for i in $(seq 300); do [ $(pgrep -fc ",
      ranks_of(width),
      ") = 2 ] && break; sleep 0.1; done; ");
}

TEST(Bench, CongestionControlIsTheOneAskedFor) {
  // Asks the connections of a rank while it runs. Ordinary users may choose the
  // machine's default and reno, so at least one of these is another algorithm.
  for (const std::string wanted : {"reno", "cubic", "bbr"}) {
    const auto has = command(
        "grep -w " + wanted +
        " /proc/sys/net/ipv4/tcp_available_congestion_control");
    if (has.code != 0) {
      EXPECT_EQ(wanted, "bbr") << "every kernel has the others";
      continue;
    }
    const auto result = command(concat(
        "timeout 60 ",
        kBench,
        "--nproc 2 --link 1gbit --model mlp:81 --rounds 9999 --congestion ",
        wanted,
        " >/dev/null 2>&1 & bench=$!; ",
        wait_for_ranks("81"),
        "rank=$(pgrep -f ",
        ranks_of("81"),
        " | tail -1); for i in $(seq 300); do "
        "used=$(nsenter -n -t $rank ss -tinH | grep -owE 'reno|cubic|bbr' | "
        "sort -u); [ -n \"$used\" ] && break; sleep 0.1; done; "
        "echo connections use $used; kill $bench; wait"));
    EXPECT_THAT(result.output, HasSubstr("connections use " + wanted + "\n"));
  }
  const auto unknown = command(kBench + "--link 1gbit --congestion none-such");
  EXPECT_EQ(unknown.code, 2) << unknown.output;
  EXPECT_THAT(
      unknown.output,
      HasSubstr("--congestion got 'none-such', this kernel has"));
}

TEST(Bench, PyTorchIsMeasuredBeside) {
  const json report = bench(concat(
      "--nproc 2 --model mlp:64 --rounds 2 --steps 2 --hooks none,noop "
      "--peer ",
      GRADWIRE_SOURCE,
      "/.venv/bin/python"));
  const auto peer = row_of(report, "none", true);
  EXPECT_THAT(peer.at("peer").get<std::string>(), HasSubstr("torch 2."));
  EXPECT_EQ(peer.at("identical"), true);
  EXPECT_LT(peer.at("relative_error"), 1e-6);
  EXPECT_GT(row_of(report, "none").at("ratio_to_peer"), 0);
}

// Starts an endless benchmark of two ranks, does `deed` to one of them after a
// while, and tells how it ended and how many ranks are left.
std::string disturbed(
    const std::string& width,
    const std::string& arguments,
    const std::string& deed) {
  return command(concat(
                     "exec 2>&1; timeout 60 ",
                     kBench,
                     "--nproc 2 --rounds 9999 --model mlp:",
                     width,
                     " ",
                     arguments,
                     " & bench=$!; ",
                     wait_for_ranks(width),
                     "sleep 4; kill -",
                     deed,
                     " $(pgrep -f ",
                     ranks_of(width),
                     " | tail -1); wait $bench; echo code $?; sleep 0.2; "
                     "echo left $(pgrep -fc ",
                     ranks_of(width),
                     ")"))
      .output;
}

TEST(Bench, AKilledRankIsNamedAndNothingStays) {
  const auto before = command("ip netns list; ip link show").output;
  const auto output = disturbed("77", "--link 1gbit", "KILL");
  EXPECT_THAT(output, HasSubstr("gradwire's rank "));
  EXPECT_THAT(output, HasSubstr("was killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(output, HasSubstr("code 1\nleft 0\n"));
  EXPECT_EQ(command("ip netns list; ip link show").output, before);
}

TEST(Bench, ARankThatHangsIsNamed) {
  const auto output = disturbed("78", "--timeout 6", "STOP");
  EXPECT_THAT(output, HasSubstr("(stopped)"));
  EXPECT_THAT(output, HasSubstr("within 6 s"));
  EXPECT_THAT(output, HasSubstr("code 1\nleft 0\n"));
}

TEST(Bench, InterruptedItLeavesNothing) {
  const auto before = command("ip netns list; ip link show").output;
  const auto result = command(
      "timeout -s INT 4 " + kBench +
      "--nproc 2 --link 1gbit --model mlp:79 --rounds 9999; sleep 0.2; "
      "echo left $(pgrep -fc '[b]ench-rank --model mlp:79 ')");
  EXPECT_THAT(result.output, HasSubstr("left 0\n"));
  EXPECT_EQ(command("ip netns list; ip link show").output, before);
}

// Not root and without user namespaces there is no shaping, and it says so.
TEST(Bench, SaysWhatShapingLacks) {
  const auto result = command(
      "unshare -r sh -c 'echo 0 > /proc/sys/user/max_net_namespaces && exec " +
      kBench + "--link 1gbit'");
  EXPECT_EQ(result.code, 2) << result.output;
  EXPECT_THAT(result.output, HasSubstr("--link needs a network namespace"));
  EXPECT_THAT(result.output, HasSubstr("or leave --link out"));
}

}  // namespace
}  // namespace gradwire::apps
