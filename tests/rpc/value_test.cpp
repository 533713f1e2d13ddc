#include "gradwire/rpc/value.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

using rpc::Wire;
using TensorWire = Wire<at::Tensor>;

TEST(RpcValue, SmallTensorsTravelAsBytesAndComeBack) {
  for (const auto type :
       {torch::kByte,
        torch::kLong,
        torch::kHalf,
        torch::kBFloat16,
        torch::kFloat,
        torch::kDouble,
        torch::kBool}) {
    for (const auto& sizes :
         std::vector<std::vector<std::int64_t>>{{}, {3}, {4, 5}, {1, 1, 7}}) {
      const auto tensor = torch::ones(sizes, type);
      const auto packed = TensorWire::pack(tensor);
      EXPECT_TRUE(packed.isTuple());
      const auto back = TensorWire::unpack(packed);
      EXPECT_EQ(back.dtype(), tensor.dtype());
      EXPECT_EQ(back.sizes(), tensor.sizes());
      EXPECT_TRUE(torch::equal(back, tensor));
    }
  }
}

// What gradients may flow through, what is large and what is strange goes
// Torch's own way.
TEST(RpcValue, OtherTensorsStayTensors) {
  for (const auto& tensor :
       {torch::ones(3).requires_grad_(),
        torch::ones(2000),
        torch::ones({0, 8192}),
        torch::ones({2, 0, 4}),
        torch::ones({3, 4}).t(),
        torch::eye(3).to_sparse(),
        torch::ones(3, torch::kComplexFloat)}) {
    const auto packed = TensorWire::pack(tensor);
    ASSERT_TRUE(packed.isTensor());
    EXPECT_TRUE(packed.toTensor().is_same(tensor));
  }
}

// Bytes from elsewhere are never read beyond their end.
TEST(RpcValue, BytesThatLieAreRefused) {
  const auto make = [](c10::IValue type, c10::IValue sizes, std::string bytes) {
    return rpc::pack_tuple({std::move(type), std::move(sizes), bytes});
  };
  const auto sizes = [](std::vector<std::int64_t> values) {
    return Wire<std::vector<std::int64_t>>::pack(values);
  };
  const auto kFloat = static_cast<std::int64_t>(torch::kFloat);
  const std::string four(4, 'x');
  TensorWire::unpack(make(kFloat, sizes({1}), four));
  for (const auto& lie :
       {make(kFloat, sizes({2}), four),
        make(kFloat, sizes({-1}), four),
        make(kFloat, sizes({1, 0}), four),
        make(kFloat, sizes({1L << 62, 4}), ""),
        make(kFloat, sizes({1L << 32, 1L << 32}), ""),
        make(std::int64_t{-1}, sizes({1}), four),
        make(std::int64_t{99}, sizes({1}), four),
        make(static_cast<std::int64_t>(torch::kQInt8), sizes({4}), four)}) {
    EXPECT_ERROR(
        Error,
        TensorWire::unpack(lie),
        "received bytes that are no tensor of their type and shape");
  }
  EXPECT_ERROR(
      Error,
      TensorWire::unpack(std::int64_t{3}),
      "of kind Int, expected Tensor");
  EXPECT_ERROR(
      Error,
      TensorWire::unpack(rpc::pack_tuple({four})),
      "received 1 elements, expected 3 of Tensor");
}

TEST(RpcValue, NumbersAreCheckedAgainstTheirTypes) {
  EXPECT_EQ(Wire<std::uint8_t>::unpack(std::int64_t{255}), 255);
  EXPECT_ERROR(
      Error, Wire<std::uint8_t>::unpack(std::int64_t{256}), "expected int");
  EXPECT_ERROR(
      Error,
      Wire<std::uint64_t>::pack(~std::uint64_t{0}),
      "18446744073709551615 cannot be sent");
  EXPECT_ERROR(Error, Wire<double>::unpack(std::int64_t{1}), "expected float");
  EXPECT_ERROR(Error, Wire<bool>::unpack(std::int64_t{1}), "expected bool");
}

}  // namespace
}  // namespace gradwire::test
