#pragma once

// Tensors of several ranks, in one place: what averagers do to ranks a test
// does to these.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "gradwire/base/text.h"
#include "gradwire/optim/named_tensor.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire::test {

// Sums in rank order, so that a test can do the same arithmetic.
inline RankOptions without_sockets(
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  return {.timeout = timeout, .transport = "local"};
}

// Of every type that is averaged: strided, of half precision, complex, without
// dimensions. Other values on every rank.
inline NamedTensorList mixed_tensors(int rank) {
  const auto seed = static_cast<std::uint64_t>(100 * rank);
  return {
      {"conv",
       random_tensor({2, 3, 4, 5}, seed + 1)
           .contiguous(at::MemoryFormat::ChannelsLast)},
      {"double", random_tensor({7}, seed + 2).to(torch::kDouble)},
      {"bf16", random_tensor({33}, seed + 3).to(torch::kBFloat16)},
      {"complex",
       torch::complex(
           random_tensor({4, 2}, seed + 4), random_tensor({4, 2}, seed + 5))
           .t()},
      {"scalar", random_tensor({}, seed + 6)}};
}

inline NamedTensorList float_tensors(
    int rank, const std::vector<std::int64_t>& sizes) {
  NamedTensorList tensors;
  for (const std::int64_t size : sizes) {
    tensors.push_back(
        {concat("p", tensors.size()),
         random_tensor({size}, 1000 * rank + tensors.size())});
  }
  return tensors;
}

// What a rank learns in one step.
inline void learn(const NamedTensorList& tensors, int rank, int step) {
  std::uint64_t seed = 7000 + 100 * step + rank;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.is_floating_point() || tensor.is_complex()) {
      const auto news = random_tensor(tensor.sizes(), 31 * seed++).mul_(0.1);
      at::Tensor(tensor).add_(news.to(tensor.scalar_type()));
    }
  }
}

// The average over some of the replicas, with the arithmetic of an all-reduce:
// in fp32 at least, scaled and then added up in rank order.
inline at::Tensor average_of(
    const std::vector<NamedTensorList>& replicas,
    std::size_t tensor,
    std::size_t first,
    std::size_t count) {
  at::Tensor sum;
  for (std::size_t rank = first; rank < first + count; ++rank) {
    const at::Tensor& own = replicas[rank][tensor].tensor;
    const auto wide = own.scalar_type() == torch::kBFloat16
                          ? own.to(torch::kFloat)
                          : own.clone();
    const auto share = wide * (1.0 / static_cast<double>(count));
    sum = sum.defined() ? sum + share : share;
  }
  return sum;
}

inline void expect_same(
    const NamedTensorList& got,
    const NamedTensorList& expected,
    const std::string& where) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(same_bits(got[i].tensor, expected[i].tensor))
        << where << " " << got[i].name;
  }
}

// Whether every rank has these.
inline bool equal_everywhere(
    const Group& group, const NamedTensorList& tensors) {
  bool equal = true;
  for (const NamedTensor& each : tensors) {
    const auto reals = each.tensor.is_complex()
                           ? torch::view_as_real(each.tensor)
                           : each.tensor;
    equal = same_on_all_ranks(group, reals.to(torch::kDouble)) && equal;
  }
  return equal;
}

}  // namespace gradwire::test
