#include "gradwire/base/options.h"

#include <gtest/gtest.h>

#include "tests/support/expect.h"

namespace gradwire {
namespace {

const std::vector<Option> kDeclared{
    {.name = "rank",
     .fallback = std::int64_t{2},
     .help = "",
     .least = 1,
     .most = 64},
    {.name = "rate", .fallback = 2.5, .help = "", .least = 0},
    {.name = "ef", .fallback = true, .help = ""},
    {.name = "rounding",
     .fallback = std::string("nearest"),
     .help = "",
     .choices = {"nearest", "stochastic"}}};

TEST(Options, FallbacksFillWhatIsNotGiven) {
  const Options options("h", kDeclared, {});
  EXPECT_EQ(options.integer("rank"), 2);
  EXPECT_EQ(options.number("rate"), 2.5);
  EXPECT_TRUE(options.flag("ef"));
  EXPECT_EQ(options.word("rounding"), "nearest");
}

TEST(Options, GivenValuesOfEveryKind) {
  const Options options(
      "h",
      kDeclared,
      {{"rank", "64"},
       {"rate", "1e-3"},
       {"ef", "off"},
       {"rounding", "stochastic"}});
  EXPECT_EQ(options.integer("rank"), 64);
  EXPECT_EQ(options.number("rate"), 1e-3);
  EXPECT_FALSE(options.flag("ef"));
  EXPECT_EQ(options.word("rounding"), "stochastic");
}

TEST(Options, DefaultsAreDescribedAsSpecsSayThem) {
  EXPECT_EQ(describe_fallback(kDeclared[0]), "2");
  EXPECT_EQ(describe_fallback(kDeclared[1]), "2.5");
  EXPECT_EQ(describe_fallback(kDeclared[2]), "on");
  EXPECT_EQ(describe_fallback(kDeclared[3]), "nearest");
  const Option named{
      .name = "ranks",
      .fallback = std::int64_t{0},
      .help = "",
      .least = 1,
      .named = {{"machine", 0}}};
  EXPECT_EQ(describe_fallback(named), "machine");
}

TEST(Options, ErrorsSayWhatWouldBeRight) {
  const auto make = [](const std::string& name, const std::string& value) {
    Options("h", kDeclared, {{name, value}});
  };
  EXPECT_ERROR(
      Error, make("rank", "0"), "option 'rank' of 'h' got '0'", "from 1 to 64");
  EXPECT_ERROR(Error, make("rank", "65"), "integer from 1 to 64");
  EXPECT_ERROR(Error, make("rank", "3x"), "got '3x'");
  EXPECT_ERROR(Error, make("rate", "-1"), "number of at least 0");
  EXPECT_ERROR(Error, make("rate", "nan"), "got 'nan'");
  EXPECT_ERROR(Error, make("ef", "yes"), "on or off");
  EXPECT_ERROR(Error, make("rounding", "up"), "one of nearest, stochastic");
  EXPECT_ERROR(
      Error,
      make("rnak", "1"),
      "unknown option 'rnak' of 'h'",
      "rank, rate, ef, rounding",
      "did you mean 'rank'?");
  EXPECT_ERROR(Error, Options("noop", {}, {{"x", "1"}}), "takes no options");
}

}  // namespace
}  // namespace gradwire
