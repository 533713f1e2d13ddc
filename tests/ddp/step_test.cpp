// A Step says what happened in one backward: its number, its outcome, when each
// bucket was ready and reduced, and what was sent.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "gradwire/ddp/ddp.h"
#include "tests/support/expect.h"
#include "tests/support/moody_hook.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using test::run_threads;
using Ddp = DistributedDataParallel<torch::nn::Linear>;
using Outcome = Step::Outcome;

// The gradient of every weight is `value`.
void backward(Ddp& ddp, double value) {
  ddp->zero_grad();
  ddp->forward(torch::full({1, 2}, value)).sum().backward();
}

// In the order in which things happen.
void expect_ascending(const std::vector<Step::Time>& times) {
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_NE(times[i], Step::Time()) << "time " << i << " is not known";
    EXPECT_TRUE(i == 0 || times[i - 1] <= times[i]) << "time " << i;
  }
}

TEST(Step, OneThatIsAppliedHasAllTimesAndBytes) {
  run_threads(2, [](const Group& group) {
    Ddp ddp(torch::nn::Linear(2, 2), group, {.hook = "int8"});
    // In the second step the Reducer agrees on buckets.
    for (int i = 0; i < 3; ++i) {
      backward(ddp, 1);
    }
    const Step step = ddp->stats().last;
    EXPECT_EQ(step.number, 2);
    EXPECT_EQ(step.outcome, Outcome::kApplied);
    EXPECT_STREQ(to_string(step.outcome), "applied");
    expect_ascending(
        {step.forward_began,
         step.forward_ended,
         step.backward_began,
         step.last_gradient,
         step.ended});
    ASSERT_EQ(step.buckets.size(), 1u);
    const Step::Bucket& bucket = step.buckets[0];
    expect_ascending(
        {step.backward_began, bucket.ready, bucket.reduced, step.ended});
    EXPECT_GT(bucket.sent.total(), 0);
    EXPECT_EQ(step.sent.total(), bucket.sent.total());
    const StepTimes times = times_of(step);
    EXPECT_GE(times.backward_ms, times.communication_ms);
    EXPECT_GE(times.communication_ms, 0);
    EXPECT_GE(times.exposed_ms, 0);
  });
}

TEST(Step, OneWhoseAverageIsNotFiniteCounts) {
  run_threads(2, [](const Group& group) {
    Ddp ddp(torch::nn::Linear(2, 2), group, {.hook = "int8"});
    const double infinity = std::numeric_limits<double>::infinity();
    backward(ddp, group.rank() == 1 ? infinity : 1);
    Stats stats = ddp->stats();
    EXPECT_EQ(stats.last.outcome, Outcome::kNotFinite);
    EXPECT_STREQ(to_string(stats.last.outcome), "not finite");
    EXPECT_EQ(stats.not_finite_steps, 1);
    EXPECT_EQ(stats.failed_steps, 0);
    EXPECT_EQ(stats.steps, 1);
    backward(ddp, 1);
    stats = ddp->stats();
    EXPECT_EQ(stats.last.outcome, Outcome::kApplied);
    EXPECT_EQ(stats.last.number, 1);
    EXPECT_EQ(stats.not_finite_steps, 1);
  });
}

// The next one has its number.
TEST(Step, OneThatFailedDoesNotCount) {
  run_threads(2, [](const Group& group) {
    bool fail_now = false;
    Ddp ddp(
        torch::nn::Linear(2, 2),
        group,
        {.hook = test::moody_hook(group, fail_now, 0)});
    backward(ddp, 1);
    fail_now = true;
    EXPECT_ERROR(Error, backward(ddp, 1), "bad mood");
    fail_now = false;
    backward(ddp, 1);
    const Stats stats = ddp->stats();
    EXPECT_EQ(stats.last.outcome, Outcome::kApplied);
    EXPECT_EQ(stats.last.number, 1);
    EXPECT_EQ(stats.steps, 2);
    EXPECT_EQ(stats.failed_steps, 1);
  });
}

TEST(Step, TimesThatNobodySawAreNotANumber) {
  Step step;
  step.ended = Step::Clock::now();
  const StepTimes times = times_of(step);
  EXPECT_TRUE(std::isnan(times.forward_ms));
  EXPECT_TRUE(std::isnan(times.backward_ms));
  EXPECT_TRUE(std::isnan(times.communication_ms));
  EXPECT_TRUE(std::isnan(times.exposed_ms));
}

}  // namespace
}  // namespace gradwire
