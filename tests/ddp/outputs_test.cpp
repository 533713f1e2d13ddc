#include "gradwire/ddp/outputs.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <map>
#include <unordered_map>

namespace user {

struct Detections {
  at::Tensor boxes;
  std::vector<at::Tensor> scores;
  int count = 0;
};

template <class Visit>
void visit_tensors(Detections& detections, Visit&& visit) {
  visit(detections.boxes);
  visit(detections.scores);
}

}  // namespace user

namespace gradwire {
namespace {

template <class T>
std::size_t count(T value) {
  return tensors_in(value).size();
}

TEST(Outputs, EveryKindOfOutput) {
  const auto t = torch::ones({1});
  EXPECT_EQ(count(t), 1u);
  EXPECT_EQ(count(std::vector{t, t}), 2u);
  EXPECT_EQ(count(std::array{t, t, t}), 3u);
  EXPECT_EQ(count(std::tuple(t, 3, std::string("x"), t)), 2u);
  EXPECT_EQ(count(std::pair(t, std::tuple(t, t))), 3u);
  EXPECT_EQ(count(std::optional(t)), 1u);
  EXPECT_EQ(count(std::optional<at::Tensor>()), 0u);
  EXPECT_EQ(count(std::map<std::string, at::Tensor>{{"a", t}, {"b", t}}), 2u);
  EXPECT_EQ(
      count(std::unordered_map<int, std::vector<at::Tensor>>{{1, {t}}}), 1u);
  torch::OrderedDict<std::string, at::Tensor> dict;
  dict.insert("a", t);
  EXPECT_EQ(count(dict), 1u);
  EXPECT_EQ(count(user::Detections{t, {t, t}, 3}), 3u);
  EXPECT_EQ(count(std::vector{user::Detections{t, {t}, 1}}), 2u);
}

TEST(Outputs, PointersLeadIntoTheValue) {
  std::tuple<at::Tensor, std::vector<at::Tensor>> value(
      torch::ones({1}), {torch::ones({1})});
  for (at::Tensor* tensor : tensors_in(value)) {
    *tensor = torch::zeros({2});
  }
  EXPECT_EQ(std::get<0>(value).numel(), 2);
  EXPECT_EQ(std::get<1>(value)[0].numel(), 2);
}

}  // namespace
}  // namespace gradwire
