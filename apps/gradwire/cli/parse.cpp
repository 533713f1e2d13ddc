#include "apps/gradwire/cli/parse.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <sstream>

#include "apps/gradwire/cli/subcommand.h"
#include "gradwire/base/error.h"

namespace gradwire::apps {
namespace {

constexpr int kUsageError = 2;
constexpr int kFailure = 1;

// A mistake in the arguments, with the help that shows how they are written.
struct UsageError {
  std::string what;
  std::string command;
};

// The subcommand that was parsed last, the program itself for none.
CLI::App& chosen(CLI::App& app) {
  const auto below = app.get_subcommands();
  return below.empty() ? app : chosen(*below.back());
}

// "gradwire bench rpc".
std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr
             ? app.get_name()
             : concat(full_name(*app.get_parent()), " ", app.get_name());
}

void add_flag(CLI::App& app, const Flag& flag) {
  const CLI::callback_t read = [flag](const std::vector<std::string>& values) {
    assign(flag, values);
    return true;
  };
  CLI::Option* option = nullptr;
  if (std::holds_alternative<bool*>(flag.target)) {
    option = app.add_flag_callback(
        flag.names, [read] { read({}); }, flag.help);
  } else {
    option = app.add_option(flag.names, read, flag.help);
    option->type_name(kind_of(flag))->default_str(value_of(flag));
  }
  const bool many =
      std::holds_alternative<std::vector<std::string>*>(flag.target);
  if (many) {
    option->take_all();
  }
  if (flag.is_positional()) {
    // All that follows is part of it, options included.
    option->required()->expected(many ? -1 : 1);
    app.positionals_at_end();
  }
  if (!flag.excludes.empty()) {
    option->excludes(app.get_option(flag.excludes));
  }
  if (flag.internal) {
    option->group("");
  }
}

// A subcommand with what it will run.
struct Ready {
  CLI::App* app;
  Action action;
};

// "bench rpc" goes behind "bench".
Ready add(CLI::App& app, const Subcommand& row) {
  CLI::App* parent = &app;
  std::istringstream words(row.name);
  std::string word;
  std::string next;
  for (words >> word; words >> next; word = next) {
    parent = parent->get_subcommand(word);
  }
  CLI::App* own = parent->add_subcommand(word, row.summary);
  if (row.internal) {
    own->group("");
  }
  Flags flags;
  Ready ready{own, row.declare(flags)};
  for (const auto& flag : flags.all()) {
    add_flag(*own, flag);
  }
  return ready;
}

// What may stand where `app` found a word it does not know.
std::vector<std::string> known_words(const CLI::App& app, bool options) {
  std::vector<std::string> words;
  if (!options) {
    for (const auto* below : app.get_subcommands(
             [](const CLI::App* each) { return !each->get_group().empty(); })) {
      words.push_back(below->get_name());
    }
    return words;
  }
  for (const auto* option : app.get_options()) {
    if (!option->get_group().empty() && !option->get_lnames().empty()) {
      words.push_back(concat("--", option->get_lnames().front()));
    }
  }
  return words;
}

// Names the first word that no one expected, on the way to the subcommand that
// was chosen.
UsageError unexpected(const CLI::App& app) {
  const auto left = app.remaining();
  const auto below = app.get_subcommands();
  if (left.empty() && !below.empty()) {
    return unexpected(*below.back());
  }
  const auto option = std::ranges::find_if(
      left, [](const std::string& word) { return word.starts_with("-"); });
  const bool is_option = option != left.end();
  const std::string word = is_option      ? option->substr(0, option->find('='))
                           : left.empty() ? ""
                                          : left.front();
  const bool of_root = app.get_parent() == nullptr;
  return {
      concat(
          is_option ? "unknown option '"
          : of_root ? "unknown subcommand '"
                    : "unexpected argument '",
          word,
          "'",
          did_you_mean(word, known_words(app, is_option))),
      full_name(app)};
}

void parse(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    // CLI11 takes them from the end.
    app.parse(std::vector(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ParseError& e) {
    // A misspelt option may be why another one is missing.
    if (app.remaining_size(/*recurse=*/true) > 0) {
      throw unexpected(app);
    }
    const auto* no_value = dynamic_cast<const CLI::ArgumentMismatch*>(&e);
    const std::string what = first_line(e.what());
    throw UsageError{
        no_value ? what.substr(0, what.find(':')) + " needs a value" : what,
        full_name(chosen(app))};
  }
  if (app.get_subcommands().empty()) {
    throw UsageError{
        concat(
            "a subcommand is required, one of ",
            join(known_words(app, /*options=*/false))),
        full_name(app)};
  }
}

int dispatch(const std::vector<std::string>& arguments) {
  CLI::App app("Gradient communication for data-parallel training");
  app.name("gradwire");
  app.set_help_flag("--help,-h", "show this help");
  app.set_version_flag(
      "--version", "gradwire " GRADWIRE_VERSION, "show the version");
  app.require_subcommand(0, 1);
  app.option_defaults()->take_last();
  std::vector<Ready> all;
  for (const auto& row : subcommands()) {
    all.push_back(add(app, row));
  }
  try {
    parse(app, arguments);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  }
  std::vector<std::string> again{"/proc/self/exe"};
  again.insert(again.end(), arguments.begin(), arguments.end());
  return std::ranges::find(all, &chosen(app), &Ready::app)->action(again);
}

}  // namespace

int run_command_line(const std::vector<std::string>& arguments) {
  const auto say = [](const std::string& what) {
    std::cerr << "gradwire: " << what << std::endl;
  };
  try {
    return dispatch(arguments);
  } catch (const UsageError& e) {
    say(concat(e.what, " (see ", e.command, " --help)"));
    return kUsageError;
  } catch (const CommError& e) {
    say(e.what());
    return kFailure;
  } catch (const Error& e) {
    say(e.what());
    return kUsageError;
  } catch (const std::exception& e) {
    say(first_line(e.what()));
    return kFailure;
  }
}

}  // namespace gradwire::apps
