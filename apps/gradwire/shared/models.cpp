#include "apps/gradwire/shared/models.h"

#include <torch/torch.h>

#include <charconv>

#include "gradwire/base/error.h"

namespace gradwire::apps {
namespace {

namespace nn = torch::nn;

struct Choice {
  std::string name;
  std::int64_t width;
};

nn::Conv2d conv3(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

struct Mlp : Classifier {
  Mlp(std::int64_t width, const ImageShape& shape) {
    net = register_module(
        "net",
        nn::Sequential(
            nn::Flatten(),
            nn::Linear(shape.height * shape.width, width),
            nn::ReLU(),
            nn::Linear(width, width),
            nn::ReLU(),
            nn::Linear(width, shape.classes)));
  }
  at::Tensor forward(at::Tensor images) override {
    return net->forward(images);
  }
  nn::Sequential net{nullptr};
};

// Smooth on purpose: where ReLU and max pooling have kinks, the last bit of a
// sum decides which way a gradient goes, and runs that differ only in how a
// batch is spread over ranks drift apart within a few steps.
struct Cnn : Classifier {
  Cnn(std::int64_t width, const ImageShape& shape) {
    const auto quarter = [](std::int64_t side) { return (side + 3) / 4; };
    net = register_module(
        "net",
        nn::Sequential(
            nn::Conv2d(nn::Conv2dOptions(1, width, 5).stride(2).padding(2)),
            nn::SiLU(),
            nn::Conv2d(
                nn::Conv2dOptions(width, 2 * width, 3).stride(2).padding(1)),
            nn::SiLU(),
            nn::Flatten(),
            nn::Linear(
                2 * width * quarter(shape.height) * quarter(shape.width), 128),
            nn::SiLU(),
            nn::Linear(128, shape.classes)));
    for (const auto& item : named_parameters()) {
      const auto& tensor = item.value();
      tensor.dim() > 1 ? nn::init::kaiming_normal_(tensor)
                       : nn::init::zeros_(tensor);
    }
  }
  at::Tensor forward(at::Tensor images) override {
    return net->forward(images);
  }
  nn::Sequential net{nullptr};
};

struct ResidualBlock : nn::Module {
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t stride) {
    conv1 = register_module("conv1", conv3(in, out, stride));
    norm1 = register_module("norm1", nn::BatchNorm2d(out));
    conv2 = register_module("conv2", conv3(out, out, 1));
    norm2 = register_module("norm2", nn::BatchNorm2d(out));
    if (stride != 1 || in != out) {
      shortcut = register_module(
          "shortcut",
          nn::Sequential(
              nn::Conv2d(
                  nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)),
              nn::BatchNorm2d(out)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    const auto side = shortcut.is_empty() ? x : shortcut->forward(x);
    x = norm1->forward(conv1->forward(x)).relu_();
    return (norm2->forward(conv2->forward(x)) + side).relu_();
  }
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  nn::Sequential shortcut{nullptr};
};

// Four stages of two blocks, as for small images: no pooling in front.
struct ResNet18 : Classifier {
  ResNet18(std::int64_t width, const ImageShape& shape) {
    stem = register_module("stem", conv3(1, width, 1));
    norm = register_module("norm", nn::BatchNorm2d(width));
    blocks = register_module("blocks", nn::Sequential());
    std::int64_t channels = width;
    for (int stage = 0; stage < 4; ++stage) {
      const std::int64_t out = width << stage;
      for (int block = 0; block < 2; ++block) {
        const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
        blocks->push_back(ResidualBlock(channels, out, stride));
        channels = out;
      }
    }
    head = register_module("head", nn::Linear(channels, shape.classes));
  }
  at::Tensor forward(at::Tensor x) override {
    x = norm->forward(stem->forward(x)).relu_();
    x = blocks->forward(x).mean({2, 3});
    return head->forward(x);
  }
  nn::Conv2d stem{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Sequential blocks{nullptr};
  nn::Linear head{nullptr};
};

Choice parse(const std::string& text) {
  const std::vector<std::pair<std::string, std::int64_t>> known{
      {"mlp", 512}, {"cnn", 32}, {"resnet18", 64}};
  std::vector<std::string> names;
  for (const auto& [name, width] : known) {
    names.push_back(name);
    if (text == name) {
      return {name, width};
    }
    if (text.starts_with(name + ":")) {
      const char* begin = text.data() + name.size() + 1;
      const char* end = text.data() + text.size();
      std::int64_t value = 0;
      const auto [stop, code] = std::from_chars(begin, end, value);
      if (code != std::errc() || stop != end || value < 1 || value > 65536) {
        fail("app", "model '", text, "' has no width from 1 to 65536 after :");
      }
      return {name, value};
    }
  }
  fail(
      "app",
      "unknown model '",
      text,
      "', known are ",
      join(names),
      did_you_mean(text, names));
}

}  // namespace

void check_model(const std::string& text) {
  parse(text);
}

std::int64_t model_width(const std::string& text) {
  return parse(text).width;
}

std::shared_ptr<Classifier> make_model(
    const std::string& text, const ImageShape& shape) {
  const Choice choice = parse(text);
  if (shape.height < 4 || shape.width < 4) {
    fail(
        "app",
        "images are ",
        shape.height,
        " by ",
        shape.width,
        " pixels, expected at least 4 by 4");
  }
  if (choice.name == "mlp") {
    return std::make_shared<Mlp>(choice.width, shape);
  }
  if (choice.name == "cnn") {
    return std::make_shared<Cnn>(choice.width, shape);
  }
  return std::make_shared<ResNet18>(choice.width, shape);
}

}  // namespace gradwire::apps
