// Every subcommand there is, by the registry: what its help says and what a
// misspelt option is answered with.

#include "apps/gradwire/cli/subcommand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <sstream>

#include "apps/gradwire/cli/parse.h"
#include "gradwire/base/text.h"

namespace gradwire::apps {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Result {
  int code = 0;
  std::string output;
};

// Reads what is written to a stream for as long as it exists.
class Captured {
 public:
  explicit Captured(std::ostream& stream)
      : stream_(stream), before_(stream.rdbuf(text_.rdbuf())) {}
  ~Captured() {
    stream_.rdbuf(before_);
  }
  Captured(const Captured&) = delete;
  std::string text() const {
    return text_.str();
  }

 private:
  std::ostream& stream_;
  std::ostringstream text_;
  std::streambuf* before_;
};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream words(text);
  std::vector<std::string> all;
  for (std::string word; words >> word;) {
    all.push_back(word);
  }
  return all;
}

// The command line in this process.
Result run(const std::string& arguments) {
  const Captured out(std::cout);
  const Captured err(std::cerr);
  const int code = run_command_line(words_of(arguments));
  return {code, out.text() + err.text()};
}

std::vector<Flag> flags_of(const Subcommand& row) {
  Flags flags;
  const Action action = row.declare(flags);
  return flags.all();
}

// Words one blank apart: help is broken into lines.
std::string unwrapped(const std::string& text) {
  return join(words_of(text), " ");
}

TEST(Subcommands, EveryOneHasHelpForEveryOption) {
  for (const auto& row : subcommands()) {
    EXPECT_NE(row.summary, "") << row.name;
    const auto shown = run(row.name + " --help");
    EXPECT_EQ(shown.code, 0) << row.name;
    EXPECT_THAT(unwrapped(shown.output), HasSubstr(row.summary));
    for (const auto& flag : flags_of(row)) {
      EXPECT_NE(flag.help, "") << row.name << " " << flag.names;
      if (!flag.internal) {
        EXPECT_THAT(unwrapped(shown.output), HasSubstr(flag.help));
      }
    }
  }
}

TEST(Subcommands, OnlyThoseForUsersAreInTheHelp) {
  const auto help = run("--help").output;
  for (const auto& row : subcommands()) {
    if (row.internal) {
      EXPECT_THAT(help, Not(HasSubstr(row.name)));
    } else if (row.name.find(' ') == std::string::npos) {
      EXPECT_THAT(help, HasSubstr("\n  " + row.name + " "));
    }
  }
}

TEST(Subcommands, AMisspeltOptionNamesTheHelpOfItsSubcommand) {
  for (const auto& row : subcommands()) {
    for (const char* value : {"", " x", "=x"}) {
      const auto result = run(concat(row.name, " --jsno", value));
      EXPECT_EQ(result.code, 2) << row.name;
      EXPECT_THAT(
          result.output,
          HasSubstr(concat("(see gradwire ", row.name, " --help)\n")));
      EXPECT_THAT(result.output, HasSubstr("unknown option '--jsno'"));
    }
  }
}

TEST(Subcommands, AMisspeltWordIsGuessed) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"bench --hoks x",
       "unknown option '--hoks', did you mean '--hooks'? (see gradwire bench "
       "--help)"},
      {"bench rpc --roundz=3",
       "unknown option '--roundz', did you mean '--rounds'? (see gradwire "
       "bench rpc --help)"},
      {"bench rcp",
       "unexpected argument 'rcp', did you mean 'rpc'? (see gradwire bench "
       "--help)"},
      {"trian",
       "unknown subcommand 'trian', did you mean 'train'? (see gradwire "
       "--help)"},
      {"train --hook", "--hook needs a value (see gradwire train --help)"},
      {"run --nporc 2",
       "unknown option '--nporc', did you mean '--nproc'? (see gradwire run "
       "--help)"}};
  for (const auto& [arguments, text] : cases) {
    EXPECT_EQ(run(arguments).output, concat("gradwire: ", text, "\n"));
  }
}

TEST(Subcommands, AValueOfTheWrongKindIsNamed) {
  for (const auto& [arguments, text] :
       std::vector<std::pair<std::string, std::string>>{
           {"train --epochs many", "--epochs is 'many', expected an integer"},
           {"train --lr 1e", "--lr is '1e', expected a number"},
           {"train --seed -1", "--seed is '-1', expected an integer from 0"},
           {"run -n 2x -- true", "--nproc is '2x', expected an integer"}}) {
    const auto result = run(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_EQ(result.output, concat("gradwire: [gradwire.app] ", text, "\n"));
  }
}

TEST(Subcommands, TheLastOfSeveralValuesCounts) {
  const auto result = run("train --epochs 3 --epochs 0");
  EXPECT_THAT(result.output, HasSubstr("--epochs is 0"));
}

}  // namespace
}  // namespace gradwire::apps
