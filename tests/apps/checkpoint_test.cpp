#include "apps/gradwire/train/checkpoint.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <sstream>

#include "tests/support/command.h"
#include "tests/support/expect.h"

namespace gradwire::apps {
namespace {

using test::TemporaryFolder;

const std::map<std::string, std::string> kFacts{{"model", "cnn"}};

std::string read(const std::filesystem::path& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Checkpoint, WhatIsSavedIsLoaded) {
  const TemporaryFolder folder;
  const std::string state("bytes\0with\nanything", 19);
  save_checkpoint(folder.path(), {kFacts, 42, state});
  const Checkpoint loaded = load_checkpoint(folder.path(), kFacts);
  EXPECT_EQ(loaded.step, 42);
  EXPECT_EQ(loaded.state, state);
}

TEST(Checkpoint, RefusedWithNameAndReason) {
  const TemporaryFolder folder;
  const auto file = checkpoint_file(folder.path());
  const auto load = [&] { load_checkpoint(folder.path(), kFacts); };
  EXPECT_ERROR(Error, load(), file.string(), "does not exist");
  save_checkpoint(folder.path(), {kFacts, 1, std::string(1000, 'x')});
  const std::string good = read(file);
  // Cut anywhere, it is not taken for a whole one.
  for (std::size_t length = 0; length < good.size(); length += 37) {
    write(file, good.substr(0, length));
    EXPECT_ERROR(Error, load(), file.string());
  }
  write(file, good.substr(0, good.size() - 1));
  EXPECT_ERROR(Error, load(), "is truncated: 999 of 1000 bytes of state");
  write(file, good + "x");
  EXPECT_ERROR(Error, load(), "1001 of 1000 bytes");
  std::string flipped = good;
  flipped.back() ^= 1;
  write(file, flipped);
  EXPECT_ERROR(Error, load(), "is damaged", "fingerprint");
  write(file, "PK\x03\x04 some other file");
  EXPECT_ERROR(Error, load(), "is not a gradwire checkpoint of version 2");
  write(file, "gradwire checkpoint 1\n{}\nPK\x03\x04");
  EXPECT_ERROR(
      Error, load(), "is a checkpoint of version 1, expected version 2");
  save_checkpoint(folder.path(), {{{"model", "mlp"}}, 1, "x"});
  EXPECT_ERROR(
      Error, load(), "is of another run: model is 'mlp' there, expected 'cnn'");
}

TEST(Checkpoint, AnUnfinishedDraftDoesNoHarm) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), {kFacts, 1, "first"});
  write(checkpoint_file(folder.path()).string() + ".draft", "half a che");
  EXPECT_EQ(load_checkpoint(folder.path(), kFacts).state, "first");
  save_checkpoint(folder.path(), {kFacts, 2, "second"});
  EXPECT_EQ(load_checkpoint(folder.path(), kFacts).state, "second");
}

}  // namespace
}  // namespace gradwire::apps
