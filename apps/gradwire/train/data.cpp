#include "apps/gradwire/train/data.h"

#include <torch/torch.h>

#include <array>
#include <filesystem>
#include <vector>

#include "apps/gradwire/train/input_file.h"
#include "gradwire/base/error.h"

namespace gradwire::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFashionFolder = "/usr/share/datasets/fashion-mnist";
constexpr std::array kFiles{
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte"};

fs::path find_file(const fs::path& folder, const std::string& name) {
  for (const auto& candidate : {folder / (name + ".gz"), folder / name}) {
    if (fs::exists(candidate)) {
      return candidate;
    }
  }
  fail(
      "data",
      "no ",
      name,
      "[.gz] in '",
      folder.string(),
      "', expected a folder with ",
      join(kFiles));
}

fs::path folder_of(const std::string& where) {
  if (where != "fashion-mnist") {
    if (!fs::is_directory(where)) {
      fail(
          "data",
          "no data at '",
          where,
          "', expected fashion-mnist, synthetic or a folder of IDX files");
    }
    return where;
  }
  if (!fs::is_directory(kFashionFolder)) {
    fail(
        "data",
        "Fashion-MNIST is not in ",
        kFashionFolder,
        ": install it (apt-get install dataset-fashion-mnist) or take "
        "--data synthetic");
  }
  return kFashionFolder;
}

// An IDX file, gzipped or plain.
class IdxReader {
 public:
  explicit IdxReader(const fs::path& path) : path_(path), file_(path) {}

  at::Tensor read(int dimensions) {
    std::array<unsigned char, 4> magic{};
    read_exactly(magic.data(), magic.size());
    if (magic[0] != 0 || magic[1] != 0 || magic[2] != 8 ||
        magic[3] != dimensions) {
      reject(concat(
          "is not an IDX file of bytes with ", dimensions, " dimensions"));
    }
    std::vector<std::int64_t> sizes;
    std::int64_t elems = 1;
    for (int i = 0; i < dimensions; ++i) {
      std::array<unsigned char, 4> size{};
      read_exactly(size.data(), size.size());
      sizes.push_back(
          (size[0] << 24 | size[1] << 16 | size[2] << 8 | size[3]) &
          0xffffffff);
      elems *= sizes.back();
      if (sizes.back() < 1 || elems > (std::int64_t{1} << 34)) {
        reject(concat("has an impossible size ", sizes.back()));
      }
    }
    auto tensor = torch::empty(sizes, torch::kByte);
    read_exactly(tensor.data_ptr<std::uint8_t>(), elems);
    return tensor;
  }

 private:
  void read_exactly(unsigned char* into, std::int64_t count) {
    while (count > 0) {
      const auto got = file_.read(into, static_cast<std::size_t>(count));
      if (got <= 0) {
        reject("is truncated or damaged");
      }
      into += got;
      count -= got;
    }
  }
  [[noreturn]] void reject(const std::string& why) const {
    fail("data", "'", path_.string(), "' ", why);
  }

  fs::path path_;
  InputFile file_;
};

Images read_images(const fs::path& folder, std::size_t first_file) {
  const fs::path image_path = find_file(folder, kFiles[first_file]);
  const fs::path label_path = find_file(folder, kFiles[first_file + 1]);
  Images result;
  result.images = IdxReader(image_path).read(3).unsqueeze(1);
  result.labels = IdxReader(label_path).read(1).to(torch::kLong);
  if (result.images.size(0) != result.labels.size(0)) {
    fail(
        "data",
        "'",
        image_path.string(),
        "' has ",
        result.images.size(0),
        " images but '",
        label_path.string(),
        "' has ",
        result.labels.size(0),
        " labels");
  }
  return result;
}

// Ten patterns under heavy noise: learnable, but not at a glance.
Images make_images(
    const at::Tensor& patterns, std::int64_t count, at::Generator& generator) {
  Images result;
  const auto classes = patterns.size(0);
  result.labels = torch::randint(
      classes, {count}, generator, torch::TensorOptions().dtype(torch::kLong));
  const auto noise = torch::randn({count, 1, 28, 28}, generator);
  const auto pixels = patterns.index_select(0, result.labels) + 2.0 * noise;
  result.images = (pixels * 24 + 128).clamp(0, 255).to(torch::kByte);
  return result;
}

Dataset make_synthetic(std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  Dataset data;
  const auto patterns = torch::randn({10, 1, 28, 28}, generator);
  data.train = make_images(patterns, 8192, generator);
  data.test = make_images(patterns, 2048, generator);
  return data;
}

}  // namespace

at::Tensor Dataset::inputs(
    const Images& from, const at::Tensor& indices) const {
  return from.images.index_select(0, indices)
      .to(torch::kFloat)
      .sub_(mean)
      .div_(deviation);
}

void check_dataset(const std::string& where) {
  if (where == "synthetic") {
    return;
  }
  const fs::path folder = folder_of(where);
  for (const char* name : kFiles) {
    find_file(folder, name);
  }
}

Dataset load_dataset(const std::string& where, std::uint64_t seed) {
  Dataset data;
  if (where == "synthetic") {
    data = make_synthetic(seed);
  } else {
    const fs::path folder = folder_of(where);
    data.train = read_images(folder, 0);
    data.test = read_images(folder, 2);
  }
  data.name = where;
  data.classes = data.train.labels.max().item<std::int64_t>() + 1;
  const auto pixels = data.train.images.to(torch::kFloat);
  data.mean = pixels.mean().item<double>();
  data.deviation = std::max(1e-6, pixels.std().item<double>());
  return data;
}

}  // namespace gradwire::apps
