#include "gradwire/comm/future.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/expect.h"

namespace gradwire {
namespace {

TEST(Future, ReadyHoldsItsValue) {
  const Future future = Future::ready(torch::ones({2}));
  EXPECT_TRUE(future.done());
  EXPECT_EQ(future.wait().numel(), 2);
  EXPECT_EQ(future.error(), nullptr);
}

TEST(Future, FailedThrowsWhatItHolds) {
  const Future future =
      Future::failed(std::make_exception_ptr(CommError("peer lost")));
  EXPECT_ERROR(CommError, future.wait(), "peer lost");
}

TEST(Future, ThenPassesValuesAndErrorsOn) {
  const auto twice = [](const at::Tensor& t) { return t * 2; };
  EXPECT_EQ(
      Future::ready(torch::ones({})).then(twice).wait().item<double>(), 2);
  const Future failed =
      Future::failed(std::make_exception_ptr(CommError("peer lost")));
  EXPECT_ERROR(CommError, failed.then(twice).wait(), "peer lost");
  const Future thrower =
      Future::ready(torch::ones({})).then([](const at::Tensor&) -> at::Tensor {
        throw Error("bad step");
      });
  EXPECT_ERROR(Error, thrower.wait(), "bad step");
}

TEST(Future, EmptyOneCannotBeWaitedFor) {
  EXPECT_FALSE(Future().valid());
  EXPECT_ERROR(Error, Future().wait(), "Future is empty");
}

}  // namespace
}  // namespace gradwire
