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
#include "gradwire/comm/transports.h"
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

// One way in which a codec's messages can look.
struct MessageForm {
  // The value of an option that leads to it; empty: all do.
  std::string value;
  int id = 0;
  int variant = 0;
  std::int64_t scale_bytes = 0;
};

// Read from a message of one element.
MessageForm form_of(const std::string& spec, const std::string& value) {
  const auto codec = codec::make_codec(spec);
  const codec::Segment segment{.elems = 1};
  const float zero = 0;
  std::vector<std::uint8_t> message(codec.message_bytes({&segment, 1}));
  codec.encode({&segment, 1}, &zero, message);
  const auto header = static_cast<std::int64_t>(codec::kHeaderBytes);
  return {
      value,
      message.at(2),
      message.at(3),
      codec.message_parts({&segment, 1}).metadata - header};
}

// An option is one of them if messages tell its values apart.
std::vector<MessageForm> forms_of(const codec::CodecInfo& info) {
  for (const auto& option : info.options) {
    std::vector<MessageForm> forms;
    for (const auto& value : option.choices) {
      forms.push_back(
          form_of(concat(info.name, ":", option.name, "=", value), value));
    }
    if (!forms.empty() && forms.front().variant != forms.back().variant) {
      return forms;
    }
  }
  return {form_of(info.name, "")};
}

std::string messages_table() {
  MarkdownTable table(
      {"codec", "byte 2", "variant (byte 3)", "bytes of a scale"});
  for (const auto& info : codec::codecs()) {
    const auto forms = forms_of(info);
    std::vector<std::string> variants;
    std::vector<std::string> scales;
    for (const auto& form : forms) {
      const auto of_value = form.value.empty() ? "" : " " + form.value;
      variants.push_back(concat(form.variant, of_value));
      scales.push_back(concat(form.scale_bytes, of_value));
    }
    const bool one_scale =
        forms.front().scale_bytes == forms.back().scale_bytes;
    table.add(
        {code(info.name),
         concat(forms.front().id),
         join(variants),
         one_scale ? concat(forms.front().scale_bytes) : join(scales)});
  }
  return table.text();
}

std::string transports_table() {
  MarkdownTable table({"transport", "how tensors move", "devices"});
  for (const auto& row : transports()) {
    std::vector<std::string> devices;
    for (const auto device : row.devices) {
      devices.push_back(c10::DeviceTypeName(device, /*lower_case=*/true));
    }
    table.add({code(row.name), row.summary, join(devices)});
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
    {"codec-messages", messages_table},
    {"transports", transports_table},
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
