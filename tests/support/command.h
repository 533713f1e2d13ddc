#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "gradwire/base/error.h"

namespace gradwire::test {

struct CommandResult {
  int code = 0;
  std::string output;  // standard output and error together
};

// Runs a shell command.
inline CommandResult command(const std::string& text) {
  CommandResult result;
  FILE* pipe = popen((text + " 2>&1").c_str(), "r");
  if (pipe == nullptr) {
    fail("test", "cannot run ", text);
  }
  std::array<char, 4096> chunk;
  while (const auto count = fread(chunk.data(), 1, chunk.size(), pipe)) {
    result.output.append(chunk.data(), count);
  }
  const int status = pclose(pipe);
  result.code =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

// A folder of its own, gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name =
        std::filesystem::temp_directory_path() / "gradwire-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      fail("test", "cannot make a temporary folder");
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::filesystem::remove_all(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const {
    return path_;
  }
  std::string operator/(const std::string& name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace gradwire::test
