#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

namespace gradwire::apps {

// A classifier of [N, 1, H, W] images into [N, classes] scores.
struct Classifier : torch::nn::Module {
  virtual at::Tensor forward(at::Tensor images) = 0;
};

struct ImageShape {
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t classes = 10;
};

// "mlp", "cnn", "resnet18", each with an optional width: "mlp:2048" (hidden
// units), "cnn:32" (first channels), "resnet18:64" (first channels). Throws
// Error for any other text.
std::shared_ptr<Classifier> make_model(
    const std::string& text, const ImageShape& shape);

// Throws like make_model; makes nothing.
void check_model(const std::string& text);
// The width in `text`, or the model's default. Throws like make_model.
std::int64_t model_width(const std::string& text);

}  // namespace gradwire::apps
