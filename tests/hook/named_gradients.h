#pragma once

// Gradients with names and shapes, through a hook as DDP would bring them.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "gradwire/base/text.h"
#include "gradwire/hook/hook.h"
#include "tests/hook/model_shapes.h"
#include "tests/support/hook_step.h"
#include "tests/support/tensors.h"

namespace gradwire::test {

struct NamedGradient {
  std::string name;
  at::Tensor gradient;
};
using NamedGradients = std::vector<NamedGradient>;

// Matrices of several shapes, some alike, and all kinds of others.
inline const Shapes kMixedShapes{
    {20, 30},
    {64},
    {20, 30},
    {},
    {8, 3, 5, 5},
    {0, 7},
    {1, 50},
    {50, 1},
    {20, 30},
    {6, 2, 2, 3, 4},
    {3, 3}};

inline NamedGradients random_gradients(
    const Shapes& shapes, std::uint64_t seed) {
  NamedGradients gradients;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    gradients.push_back(
        {concat("p", i), random_tensor(shapes[i], 100 * seed + i)});
  }
  return gradients;
}

// Matrices of which a few directions matter, each far smaller than the one
// before, which stay from step to step. Where two are about as large, rounding
// decides which one is sent first, and feedback never forgets it. `decay`: how
// large each is compared with the one before.
inline at::Tensor structured(
    at::IntArrayRef shape,
    std::uint64_t seed,
    int step,
    int rank,
    double decay = 0.02) {
  auto gradient = 1e-4 * random_tensor(shape, 50 * step + rank);
  if (shape.size() < 2 || gradient.numel() == 0) {
    return gradient;
  }
  const auto rows = shape[0];
  const auto columns = gradient.numel() / rows;
  for (int i = 0; i < 3; ++i) {
    const auto u = random_tensor({rows, 1}, seed + 20 * i);
    const auto v = random_tensor({1, columns}, seed + 20 * i + 10);
    const double size = std::pow(decay, i) * (1 + 0.2 * rank + 0.1 * step);
    gradient += size * u.matmul(v).view(shape);
  }
  return gradient;
}

inline NamedGradients structured_gradients(
    const Shapes& shapes, int step, int rank, double decay = 0.02) {
  NamedGradients gradients;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    gradients.push_back(
        {concat("p", i), structured(shapes[i], 1000 * i, step, rank, decay)});
  }
  return gradients;
}

// One backward: buckets of so many parameters each. The averages come back in
// the gradients' own shapes.
inline std::vector<at::Tensor> reduce(
    Hook& hook, const NamedGradients& gradients, std::size_t a_bucket = 4) {
  std::vector<Bucket> buckets;
  std::vector<Future> futures;
  const HookStep step(hook);
  for (std::size_t begin = 0; begin < gradients.size(); begin += a_bucket) {
    const auto end = std::min(begin + a_bucket, gradients.size());
    std::vector<at::Tensor> flat;
    std::vector<std::shared_ptr<const Parameter>> parameters;
    for (std::size_t i = begin; i < end; ++i) {
      flat.push_back(gradients[i].gradient.reshape({-1}));
      parameters.push_back(std::make_shared<const Parameter>(Parameter{
          gradients[i].name, torch::zeros_like(gradients[i].gradient)}));
    }
    buckets.emplace_back(
        buckets.size(), end == gradients.size(), torch::cat(flat), parameters);
    futures.push_back(hook.reduce(buckets.back()));
  }
  std::vector<at::Tensor> averages;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Bucket done = buckets[i].with_buffer(futures[i].wait());
    for (std::size_t k = 0; k < done.size(); ++k) {
      averages.push_back(done.gradient(k).clone());
    }
  }
  return averages;
}

// Relative to the largest element of each.
inline void expect_near(
    const std::vector<at::Tensor>& got,
    const std::vector<at::Tensor>& expected,
    double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i].numel() > 0) {
      const auto difference = (got[i].to(torch::kDouble) - expected[i]).abs() /
                              expected[i].abs().max().clamp_min(1e-30);
      EXPECT_LE(difference.max().item<double>(), tolerance)
          << "parameter " << i;
    }
  }
}

}  // namespace gradwire::test
