#pragma once

// The parameters of known models, as shapes.

#include <cstdint>
#include <vector>

namespace gradwire::test {

using Shapes = std::vector<std::vector<std::int64_t>>;

inline void add_norm(Shapes& shapes, std::int64_t width) {
  shapes.push_back({width});
  shapes.push_back({width});
}

inline void add_conv(
    Shapes& shapes, std::int64_t out, std::int64_t in, std::int64_t kernel) {
  shapes.push_back({out, in, kernel, kernel});
  add_norm(shapes, out);
}

// For images of 32 x 32 in ten classes.
inline Shapes resnet18() {
  Shapes shapes;
  add_conv(shapes, 64, 3, 3);
  std::int64_t in = 64;
  for (const std::int64_t width : {64, 128, 256, 512}) {
    for (int block = 0; block < 2; ++block) {
      add_conv(shapes, width, in, 3);
      add_conv(shapes, width, width, 3);
      if (in != width) {
        add_conv(shapes, width, in, 1);
      }
      in = width;
    }
  }
  shapes.push_back({10, 512});
  shapes.push_back({10});
  return shapes;
}

inline Shapes resnet50() {
  Shapes shapes;
  add_conv(shapes, 64, 3, 7);
  std::int64_t in = 64;
  const std::vector<int> blocks{3, 4, 6, 3};
  std::int64_t width = 64;
  for (const int count : blocks) {
    for (int block = 0; block < count; ++block) {
      add_conv(shapes, width, in, 1);
      add_conv(shapes, width, width, 3);
      add_conv(shapes, 4 * width, width, 1);
      if (block == 0) {
        add_conv(shapes, 4 * width, in, 1);
      }
      in = 4 * width;
    }
    width *= 2;
  }
  shapes.push_back({1000, 2048});
  shapes.push_back({1000});
  return shapes;
}

// 124 M parameters.
inline Shapes gpt2() {
  constexpr std::int64_t d = 768;
  Shapes shapes{{50257, d}, {1024, d}};
  for (int layer = 0; layer < 12; ++layer) {
    add_norm(shapes, d);
    for (const auto& [in, out] :
         std::vector<std::pair<int, int>>{{1, 3}, {1, 1}, {1, 4}, {4, 1}}) {
      shapes.push_back({in * d, out * d});
      shapes.push_back({out * d});
    }
    add_norm(shapes, d);
  }
  add_norm(shapes, d);
  return shapes;
}

// Three layers of 650 for WikiText-2, encoder and decoder tied.
inline Shapes lstm() {
  constexpr std::int64_t kWords = 28869;
  constexpr std::int64_t kHidden = 650;
  Shapes shapes{{kWords, kHidden}, {kWords}};
  for (int layer = 0; layer < 3; ++layer) {
    shapes.push_back({4 * kHidden, kHidden});
    shapes.push_back({4 * kHidden, kHidden});
    add_norm(shapes, 4 * kHidden);
  }
  return shapes;
}

}  // namespace gradwire::test
