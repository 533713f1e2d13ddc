// The tables of docs/ that are made from the registries: tools/docs_tables runs
// this for each of them.

#include <cctype>
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>

#include "apps/gradwire/cli/subcommand.h"
#include "apps/gradwire/shared/markdown.h"
#include "apps/gradwire/shared/registries.h"
#include "gradwire/base/error.h"
#include "gradwire/base/launchers.h"
#include "gradwire/codec/codec.h"
#include "gradwire/ddp/comm_hook_type.h"

namespace gradwire::apps {
namespace {

std::string hooks_table() {
  MarkdownTable table({"spec", "what it does"});
  for (const auto& row : hook_rows()) {
    const auto bracket = row.name.find('[');
    // "fp16[(hook)]" stands for two specs.
    const std::string plain = row.name.substr(0, bracket);
    table.add(
        {bracket == std::string::npos
             ? code(plain)
             : concat(code(plain), ", ", code(plain + "(hook)")),
         row.summary});
  }
  return table.text();
}

// Bits of an element in a long message, its share of the scales included.
std::string bits_of(const codec::CodecInfo& info) {
  constexpr std::int64_t kElems = 1 << 20;
  const codec::Segment segment{.elems = kElems};
  const auto bytes = codec::make_codec(info.name).message_bytes({&segment, 1});
  std::ostringstream text;
  text << std::setprecision(3) << 8.0 * static_cast<double>(bytes) / kElems;
  return text.str();
}

std::string codecs_table() {
  MarkdownTable table({"spec", "what an element becomes", "bits"});
  for (const auto& info : codec::codecs()) {
    table.add({code(info.name), info.summary, bits_of(info)});
  }
  return table.text();
}

std::string launchers_table() {
  MarkdownTable table(
      {"launcher", "rank of world", "the same on one machine", "ranks meet"});
  const auto names = [](const Launcher::Variables& variables) {
    std::vector<std::string> marked;
    for (const auto& name : variables) {
      marked.push_back(code(name));
    }
    return join(marked, " or ");
  };
  for (const auto& row : launchers()) {
    table.add(
        {row.name,
         concat(names(row.rank), " of ", names(row.world)),
         concat(names(row.local_rank), " of ", names(row.local_world)),
         row.meets});
  }
  return table.text();
}

std::string torch_names_table() {
  MarkdownTable table({"PyTorch's name", "spec"});
  for (const auto& row : comm_hook_names()) {
    table.add({code(row.name), code(row.spec)});
  }
  return table.text();
}

std::string flags_table(const Subcommand& row) {
  Flags flags;
  const Action action = row.declare(flags);
  MarkdownTable table({"option", "default", "meaning"});
  bool empty = true;
  for (const auto& flag : flags.all()) {
    if (!flag.internal) {
      empty = false;
      table.add({code(flag.names), code(value_of(flag)), flag.help});
    }
  }
  return empty ? "It has no options.\n" : table.text();
}

std::string sentence(std::string text) {
  text.front() = static_cast<char>(std::toupper(text.front()));
  return text + ".";
}

std::string subcommands_page() {
  std::string text;
  for (const auto& row : subcommands()) {
    if (!row.internal) {
      text += concat(
          text.empty() ? "" : "\n",
          "## gradwire ",
          row.name,
          "\n\n",
          sentence(row.summary),
          "\n\n",
          flags_table(row));
    }
  }
  return text;
}

struct Table {
  const char* name;
  std::string (*make)();
};

constexpr Table kTables[] = {
    {"hooks", hooks_table},
    {"hook-options", [] { return options_to_markdown(hook_rows()); }},
    {"codecs", codecs_table},
    {"codec-options", [] { return options_to_markdown(codec_rows()); }},
    {"launchers", launchers_table},
    {"torch-names", torch_names_table},
    {"subcommands", subcommands_page}};

int print_table(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& table : kTables) {
    if (name == table.name) {
      std::cout << table.make() << std::flush;
      return 0;
    }
    known.emplace_back(table.name);
  }
  fail(
      "app",
      "unknown table '",
      name,
      "', known are ",
      join(known),
      did_you_mean(name, known));
}

}  // namespace

Subcommand markdown_command() {
  return {
      "markdown",
      "print a table of docs/",
      [](Flags& flags) -> Action {
        const auto name = std::make_shared<std::string>();
        flags.add("table", *name, "such as hooks or launchers");
        return [name](const auto&) { return print_table(*name); };
      },
      /*internal=*/true};
}

}  // namespace gradwire::apps
