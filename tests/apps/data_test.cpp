#include "apps/gradwire/train/data.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <zlib.h>

#include <fstream>

#include "tests/support/command.h"
#include "tests/support/expect.h"

namespace gradwire::apps {
namespace {

using test::TemporaryFolder;

std::string idx(const std::vector<int>& sizes, int fill) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  int count = 1;
  for (const int size : sizes) {
    bytes += {0, 0, static_cast<char>(size >> 8), static_cast<char>(size)};
    count *= size;
  }
  return bytes + std::string(count, static_cast<char>(fill));
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void write_gz(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

// A complete little data set; the training images are gzipped, the rest not.
void fill(const TemporaryFolder& folder) {
  write_gz(folder / "train-images-idx3-ubyte.gz", idx({6, 8, 9}, 100));
  write(folder / "train-labels-idx1-ubyte", idx({6}, 2));
  write(folder / "t10k-images-idx3-ubyte", idx({3, 8, 9}, 50));
  write(folder / "t10k-labels-idx1-ubyte", idx({3}, 1));
}

TEST(Data, ReadsIdxPlainAndGzipped) {
  const TemporaryFolder folder;
  fill(folder);
  const Dataset data = load_dataset(folder.path(), 1);
  EXPECT_EQ(data.train.images.sizes(), (at::IntArrayRef{6, 1, 8, 9}));
  EXPECT_EQ(data.test.size(), 3);
  EXPECT_EQ(data.classes, 3);
  EXPECT_EQ(data.mean, 100);
  const auto inputs = data.inputs(data.train, torch::tensor({0, 5}));
  EXPECT_EQ(inputs.scalar_type(), torch::kFloat);
  EXPECT_EQ(inputs.abs().max().item<float>(), 0);
}

TEST(Data, DamagedFilesAreNamedWithTheReason) {
  const TemporaryFolder folder;
  const auto load = [&] { load_dataset(folder.path(), 1); };
  fill(folder);
  write(folder / "t10k-labels-idx1-ubyte", idx({4}, 1));
  EXPECT_ERROR(Error, load(), "has 3 images but", "has 4 labels");
  fill(folder);
  write(folder / "t10k-labels-idx1-ubyte", idx({3}, 1).substr(0, 9));
  EXPECT_ERROR(Error, load(), "t10k-labels-idx1-ubyte' is truncated");
  fill(folder);
  write(folder / "t10k-images-idx3-ubyte", "something else entirely");
  EXPECT_ERROR(Error, load(), "t10k-images-idx3-ubyte' is not an IDX file");
  fill(folder);
  write(folder / "t10k-images-idx3-ubyte", idx({0, 8, 9}, 0));
  EXPECT_ERROR(Error, load(), "impossible size 0");
  fill(folder);
  std::filesystem::remove(folder / "train-labels-idx1-ubyte");
  EXPECT_ERROR(Error, load(), "no train-labels-idx1-ubyte[.gz] in");
}

TEST(Data, SyntheticDependsOnTheSeedAlone) {
  const Dataset a = load_dataset("synthetic", 3);
  const Dataset b = load_dataset("synthetic", 3);
  const Dataset c = load_dataset("synthetic", 4);
  EXPECT_TRUE(torch::equal(a.train.images, b.train.images));
  EXPECT_FALSE(torch::equal(a.train.images, c.train.images));
  EXPECT_EQ(a.classes, 10);
}

}  // namespace
}  // namespace gradwire::apps
