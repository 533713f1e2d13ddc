// What workers make of messages: the same as Torch where it is plain data, an
// Error where it is not.

#include "gradwire/rpc/unpickle.h"

#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/torch.h>

#include <random>

#include "gradwire/rpc/value.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

struct Pickled {
  std::string bytes;
  std::vector<at::Tensor> tensors;
};

Pickled pickled(const c10::IValue& value) {
  Pickled result;
  const auto bytes = torch::jit::pickle(value, &result.tensors);
  result.bytes.assign(bytes.begin(), bytes.end());
  return result;
}

c10::IValue there_and_back(const c10::IValue& value) {
  const Pickled message = pickled(value);
  return rpc::unpickle(message.bytes, message.tensors);
}

c10::IValue tuple(std::vector<c10::IValue> elements) {
  return rpc::pack_tuple(std::move(elements));
}

std::vector<c10::IValue> plain_values() {
  const c10::IValue shared = tuple({1, "shared"});
  std::vector<c10::IValue> values{
      c10::IValue(),
      true,
      false,
      "",
      std::string("with \0 and more", 15),
      std::string(100'000, 'x'),
      0.5,
      -1e300,
      std::vector<std::int64_t>{},
      std::vector<std::int64_t>{1, -2, std::int64_t{1} << 50},
      std::vector<double>{1, 0.25},
      c10::List<bool>({true, false}),
      c10::Dict<std::string, std::string>(),
      tuple({}),
      tuple({1}),
      tuple({tuple({1, 2}), tuple({1, 2, 3}), tuple({1, 2, 3, 4})}),
      tuple({"same", "same", tuple({"same"})}),
      tuple({shared, shared}),
  };
  for (const std::int64_t number :
       {std::int64_t{0},
        std::int64_t{255},
        std::int64_t{256},
        std::int64_t{65535},
        std::int64_t{65536},
        std::int64_t{-1},
        std::int64_t{1} << 40,
        std::numeric_limits<std::int64_t>::min()}) {
    values.emplace_back(number);
  }
  return values;
}

TEST(RpcUnpickle, PlainDataComesBack) {
  for (const c10::IValue& value : plain_values()) {
    EXPECT_EQ(there_and_back(value), value) << value;
  }
  // More than fit into memo numbers of one byte.
  std::vector<c10::IValue> many;
  for (int i = 0; i < 1000; ++i) {
    many.emplace_back(concat("text ", i / 2));
  }
  EXPECT_EQ(there_and_back(tuple(many)), tuple(many));
}

TEST(RpcUnpickle, TensorsComeBackByNumber) {
  const auto x = torch::ones(3);
  const auto y = torch::zeros({2, 2});
  const auto back = there_and_back(
      tuple({x, tuple({y, x}), std::vector<at::Tensor>{y, x}, 5}));
  const auto& parts = back.toTupleRef().elements();
  EXPECT_TRUE(parts[0].toTensor().is_same(x));
  const auto& inner = parts[1].toTupleRef().elements();
  EXPECT_TRUE(inner[0].toTensor().is_same(y));
  EXPECT_TRUE(inner[1].toTensor().is_same(x));
  EXPECT_TRUE(parts[2].toTensorVector()[0].is_same(y));
}

TEST(RpcUnpickle, WhatNamesATypeIsRefused) {
  c10::Dict<std::string, std::int64_t> map;
  map.insert("a", 1);
  for (const c10::IValue& value :
       {c10::IValue(map),
        c10::IValue(c10::List<std::string>({"a"})),
        c10::IValue(at::Device("cpu")),
        c10::IValue(c10::complex<double>(1, 2))}) {
    EXPECT_ERROR(
        Error,
        there_and_back(value),
        "[gradwire.rpc] received something else than plain data: a pickle");
  }
}

// Nothing but an Error, whatever became of the bytes on their way.
TEST(RpcUnpickle, DamagedBytes) {
  const auto message = pickled(tuple(
      {torch::ones(1),
       torch::ones(2),
       "text",
       "text",
       tuple({1, 2.5, tuple({true})}),
       std::vector<std::int64_t>{1, 2},
       c10::Dict<std::string, std::string>()}));
  const auto read = [&](const std::string& bytes) {
    try {
      rpc::unpickle(bytes, message.tensors);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  for (std::size_t size = 0; size < message.bytes.size(); ++size) {
    EXPECT_FALSE(read(message.bytes.substr(0, size))) << size;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = message.bytes;
    for (int flips = 0; flips <= i % 4; ++flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    read(bytes);
  }
}

at::Tensor strided(
    std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides) {
  auto tensor = torch::ones(10);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

TEST(RpcUnpickle, TensorsKeepToTheirBytes) {
  for (const auto& tensor :
       {torch::ones({}),
        torch::ones({0}),
        torch::ones({3, 4}).t(),
        torch::ones(10).slice(0, 3, 9, 2),
        torch::ones(1).expand({5, 5}),
        torch::ones(3, torch::kComplexDouble),
        torch::eye(3).to_sparse(),
        torch::zeros({4, 4}).to_sparse(),
        strided({2, 5}, {5, 1}),
        strided({10, 7}, {1, 0})}) {
    rpc::check_received({tensor});
  }
  for (const auto& tensor :
       {strided({11}, {1}),
        strided({2, 5}, {6, 1}),
        strided({2}, {10}),
        strided({2, 2}, {std::int64_t{1} << 62, std::int64_t{1} << 62})}) {
    EXPECT_ERROR(
        Error, rpc::check_received({tensor}), "reaches beyond its bytes");
  }
}

TEST(RpcUnpickle, SparseTensorsKeepToTheirSizes) {
  const auto indices = torch::tensor({{0, 5}}, torch::kLong);
  EXPECT_ERROR(
      Error,
      rpc::check_received({at::_sparse_coo_tensor_unsafe(
          indices, torch::ones(2), {3}, torch::kFloat)}),
      "indices do not fit its sizes");
  EXPECT_ERROR(
      Error,
      rpc::check_received({torch::eye(3).to_sparse_csr()}),
      "received a tensor of layout SparseCsr");
}

}  // namespace
}  // namespace gradwire::test
