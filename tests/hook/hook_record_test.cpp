#include "gradwire/hook/hook_record.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include "gradwire/base/text.h"
#include "tests/support/expect.h"

namespace gradwire {
namespace {

HookRecord example() {
  HookRecord record;
  record.save = -123456789;
  record.owner = {"int8:block=512", {{"weight", 12}, {"", 3}}};
  record.world = 4;
  record.rank = 3;
  record.layout = {{1, 0}, {}, {2}};
  record.state.numbers = {{"step", 17}};
  record.state.shared = {{"q", torch::rand({3, 2})}};
  for (const auto type :
       {torch::kFloat,
        torch::kDouble,
        torch::kHalf,
        torch::kBFloat16,
        torch::kComplexFloat,
        torch::kComplexDouble,
        torch::kLong,
        torch::kInt,
        torch::kShort,
        torch::kChar,
        torch::kByte,
        torch::kBool}) {
    record.state.residuals[concat("type ", type)] =
        torch::arange(6).reshape({2, 3}).remainder(2).to(type);
  }
  record.state.residuals["none"] = torch::rand({0, 5});
  record.state.residuals["one"] = torch::rand({});
  record.state.residuals["strided"] = torch::rand({3, 4}).t();
  return record;
}

void expect_equal(
    const std::map<std::string, at::Tensor>& a,
    const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_EQ(tensor.sizes(), b.at(name).sizes()) << name;
    EXPECT_EQ(tensor.scalar_type(), b.at(name).scalar_type()) << name;
    EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
  }
}

TEST(HookRecord, ComesBackAsItWas) {
  const HookRecord record = example();
  const HookRecord back = decode_record(encode_record(record), "here");
  EXPECT_EQ(back.save, record.save);
  EXPECT_EQ(back.owner.hook, record.owner.hook);
  EXPECT_EQ(back.owner.parameters, record.owner.parameters);
  EXPECT_EQ(back.world, record.world);
  EXPECT_EQ(back.rank, record.rank);
  EXPECT_EQ(back.layout, record.layout);
  EXPECT_EQ(back.state.numbers, record.state.numbers);
  expect_equal(back.state.shared, record.state.shared);
  expect_equal(back.state.residuals, record.state.residuals);
}

TEST(HookRecord, OtherTypesCannotBeSaved) {
  HookRecord record;
  record.state.shared["q"] =
      torch::quantize_per_tensor(torch::ones(2), 1, 0, torch::kQInt8);
  EXPECT_ERROR(
      Error,
      encode_record(record),
      "tensor 'q' cannot be saved: it is of QInt8");
}

TEST(HookRecord, EveryTruncationIsAnError) {
  const std::string bytes = encode_record(example());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_ERROR(
        Error,
        decode_record(bytes.substr(0, size), "here"),
        "[gradwire.hook] hook state here is damaged or not a hook state");
  }
}

// Whoever writes a file can write its checksum too.
void set_checksum(std::string& bytes) {
  bytes.resize(bytes.size() - 8);
  const std::uint64_t sum = fingerprint(bytes);
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(sum >> (8 * i)));
  }
}

TEST(HookRecord, FlippedBytesAreErrors) {
  const std::string bytes = encode_record(example());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string flipped = bytes;
    flipped[i] = static_cast<char>(~flipped[i]);
    EXPECT_ERROR(Error, decode_record(flipped, "here"), "hook state here is");
  }
  // With the right checksum it may be a record, another one.
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string flipped = bytes;
    flipped[random() % bytes.size()] = static_cast<char>(random());
    set_checksum(flipped);
    try {
      decode_record(flipped, "here");
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace gradwire
