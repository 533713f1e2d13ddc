#include "gradwire/hook/bucket.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/expect.h"

namespace gradwire {
namespace {

std::shared_ptr<const Parameter> parameter(
    const std::string& name, const at::Tensor& tensor) {
  return std::make_shared<const Parameter>(Parameter{name, tensor});
}

TEST(Bucket, GradientsAreViewsWithTheParametersStrides) {
  const auto plain = torch::zeros({2, 3});
  const auto last =
      torch::zeros({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto scalar = torch::zeros({});
  const Bucket bucket(
      0,
      true,
      torch::arange(6 + 24 + 1).to(torch::kFloat),
      {parameter("a", plain), parameter("b", last), parameter("c", scalar)});
  EXPECT_EQ(bucket.gradient(0)[1][2].item<float>(), 5);
  EXPECT_EQ(bucket.gradient(1).strides(), last.strides());
  // The buffer holds b as it lies in memory: channels change fastest.
  EXPECT_EQ(bucket.gradient(1)[0][1][0][0].item<float>(), 6 + 1);
  EXPECT_EQ(bucket.gradient(2).item<float>(), 30);
  bucket.gradient(1).zero_();
  EXPECT_EQ(bucket.buffer().sum().item<float>(), 0 + 1 + 2 + 3 + 4 + 5 + 30);
}

TEST(Bucket, ComplexParametersFromARealBuffer) {
  const auto complex = torch::zeros({2}, torch::kComplexFloat);
  const Bucket bucket(
      0,
      true,
      torch::arange(8).to(torch::kFloat),
      {parameter("a", complex), parameter("b", complex)});
  const auto gradient = bucket.gradient(1);
  EXPECT_TRUE(gradient.is_complex());
  EXPECT_EQ(torch::real(gradient)[0].item<float>(), 4);
  EXPECT_EQ(torch::imag(gradient)[1].item<float>(), 7);
}

TEST(Bucket, AnotherBufferKeepsPlaceAndParameters) {
  const Bucket bucket(
      3, false, torch::zeros({2}), {parameter("a", torch::zeros({2}))});
  const Bucket half = bucket.with_buffer(torch::ones({2}, torch::kHalf));
  EXPECT_EQ(half.index(), 3u);
  EXPECT_FALSE(half.is_last());
  EXPECT_EQ(half.gradient(0).scalar_type(), torch::kHalf);
  EXPECT_ERROR(
      Error,
      bucket.with_buffer(torch::ones({3})),
      "bucket 3 got a buffer of 3 elements, expected 2");
}

}  // namespace
}  // namespace gradwire
