#include "apps/gradwire/train/checkpoint.h"

#include <torch/torch.h>

#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/base/files.h"

namespace gradwire::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A file is this line, one line of JSON, then the state.
constexpr const char* kMagic = "gradwire checkpoint 2\n";
// Whose state was an archive of TorchScript.
constexpr const char* kOldMagic = "gradwire checkpoint 1\n";

[[noreturn]] void reject(const fs::path& file, const std::string& why) {
  fail("checkpoint", "'", file.string(), "' ", why);
}

std::string read_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    reject(file, fs::exists(file) ? "cannot be read" : "does not exist");
  }
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

json parse_header(const fs::path& file, const std::string& text) {
  try {
    return json::parse(text);
  } catch (const json::exception&) {
    reject(file, "is damaged: its header cannot be read");
  }
}

void check_facts(
    const fs::path& file,
    const std::map<std::string, std::string>& found,
    const std::map<std::string, std::string>& expected) {
  for (const auto& [name, value] : expected) {
    const auto other = found.find(name);
    if (other == found.end() || other->second != value) {
      reject(
          file,
          concat(
              "is of another run: ",
              name,
              " is '",
              other == found.end() ? "unknown" : other->second,
              "' there, expected '",
              value,
              "'"));
    }
  }
}

}  // namespace

fs::path checkpoint_file(const fs::path& folder) {
  return folder / "checkpoint.gradwire";
}

fs::path hook_state_folder(const fs::path& folder, std::int64_t step) {
  return folder / concat("hook.", step);
}

void remove_older_hook_states(const fs::path& folder, std::int64_t step) {
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    std::int64_t of_step = 0;
    const char* end = name.data() + name.size();
    const bool is_state =
        entry.is_directory() && name.starts_with("hook.") &&
        std::from_chars(name.data() + 5, end, of_step).ptr == end;
    if (is_state && name.size() > 5 && of_step < step) {
      old.push_back(entry.path());
    }
  }
  for (const auto& path : old) {
    std::error_code ignored;  // what is left over is removed the next time
    fs::remove_all(path, ignored);
  }
}

void save_checkpoint(const fs::path& folder, const Checkpoint& checkpoint) {
  const json header{
      {"facts", checkpoint.facts},
      {"step", checkpoint.step},
      {"state_bytes", checkpoint.state.size()},
      {"state_fingerprint", fingerprint(checkpoint.state)}};
  write_atomically(
      checkpoint_file(folder),
      concat(kMagic, header.dump(), "\n", checkpoint.state));
}

Checkpoint load_checkpoint(
    const fs::path& folder,
    const std::map<std::string, std::string>& expected_facts) {
  const fs::path file = checkpoint_file(folder);
  std::string content = read_file(file);
  if (content.starts_with(kOldMagic)) {
    reject(
        file,
        "is a checkpoint of version 1, expected version 2: loading one can run "
        "code that it contains. Train from the beginning");
  }
  if (!content.starts_with(kMagic)) {
    reject(file, "is not a gradwire checkpoint of version 2");
  }
  const std::size_t header_begin = std::string(kMagic).size();
  const std::size_t header_end = content.find('\n', header_begin);
  if (header_end == std::string::npos) {
    reject(file, "is truncated in its header");
  }
  const json header = parse_header(
      file, content.substr(header_begin, header_end - header_begin));
  Checkpoint checkpoint;
  try {
    checkpoint.facts = header.at("facts");
    checkpoint.step = header.at("step");
    checkpoint.state = content.substr(header_end + 1);
    const std::size_t wanted = header.at("state_bytes");
    if (checkpoint.state.size() != wanted) {
      reject(
          file,
          concat(
              "is truncated: ",
              checkpoint.state.size(),
              " of ",
              wanted,
              " bytes of state"));
    }
    if (fingerprint(checkpoint.state) != header.at("state_fingerprint")) {
      reject(
          file,
          "is damaged: its state does not have the fingerprint it "
          "was written with");
    }
  } catch (const json::exception&) {
    reject(file, "is damaged: its header lacks an entry");
  }
  check_facts(file, checkpoint.facts, expected_facts);
  return checkpoint;
}

std::string share_from_rank0(
    const Group& group, const std::function<std::string()>& read) {
  std::string bytes;
  std::int64_t failed = 0;
  if (group.rank() == 0) {
    try {
      bytes = read();
    } catch (const std::exception& e) {
      bytes = e.what();
      failed = 1;
    }
  }
  auto header = torch::tensor(
      {static_cast<std::int64_t>(bytes.size()), failed}, torch::kLong);
  group.broadcast(header).wait();
  bytes.resize(static_cast<std::size_t>(header[0].item<std::int64_t>()));
  if (!bytes.empty()) {
    group
        .broadcast(torch::from_blob(
            bytes.data(),
            {static_cast<std::int64_t>(bytes.size())},
            torch::kByte))
        .wait();
  }
  if (header[1].item<std::int64_t>() != 0) {
    throw Error(bytes);
  }
  return bytes;
}

}  // namespace gradwire::apps
